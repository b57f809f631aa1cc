"""One connection of the blocking API: a packed command out, its reply in, no retries.

If the outcome of a command is in doubt, the connection is closed: a late reply must never be taken
for the answer to the next command.
"""

from __future__ import annotations

import socket
import ssl
from collections.abc import Mapping, Sequence
from time import monotonic
from typing import Any, Final

from lockfast.errors import (
    CHECK_ADDRESS,
    OutcomeUnknownError,
    StoreError,
    StoreMisconfiguredError,
    StoreUnavailableError,
)
from lockfast.stores.passwords import plain
from lockfast.stores.redis.address import Address
from lockfast.stores.redis.errors import translate
from lockfast.stores.redis.resp import PENDING, ProtocolError, ReplyReader, pack
from lockfast.stores.redis.scripts import channel_of, keys_of, probe
from lockfast.stores.stream import (
    FRAME_BYTES_MAX,
    Stream,
    in_doubt,
    left_s,
    not_sent,
    tune,
    unreadable,
)
from lockfast.stores.tls import certificate_advice

EVICTING: Final = "allkeys-"
"""Policies that evict keys without a TTL, such as ours. Other policies never evict them."""


# ── the handshake, the same for both APIs ────────────────────────────────────────────


def handshake(address: Address, *, checked: bool = True, probed: bool = True) -> dict[str, bytes]:
    """Return the commands to send on a new connection, by name.

    `checked`: include those that check the server. Every connection does so, not only the first:
    after a failover or a configuration change another server may be here. `probed`: the server has
    the keys of the namespace, so check the permissions on them as well.
    """
    commands: dict[str, bytes] = {}
    if address.username:
        password = plain(address.password, address.label)
        commands["AUTH"] = pack("AUTH", address.username, password)
    elif address.password:
        commands["AUTH"] = pack("AUTH", plain(address.password, address.label))
    if address.db:
        commands["SELECT"] = pack("SELECT", address.db)
    if address.service:
        commands["ROLE"] = pack("ROLE")
    commands["SETNAME"] = pack("CLIENT", "SETNAME", "lockfast")
    if checked:
        commands["INFO"] = pack("INFO", "memory")
        if probed:
            commands["EVAL"] = packed_probe(address.namespace)
    return commands


def packed_probe(namespace: str) -> bytes:
    """Return the command that tries all required permissions, without effect."""
    keys = keys_of(namespace)
    return pack("EVAL", probe().body, len(keys), *keys, channel_of(namespace, "probe"))


def check_handshake(address: Address, replies: Mapping[str, Any]) -> None:
    """Raise unless the server accepted the client and is safe for locks."""
    if "ROLE" in replies:
        _check_role(address, replies["ROLE"])
    for name, reply in replies.items():
        # SETNAME only matters to readers of CLIENT LIST, and INFO may be forbidden.
        if isinstance(reply, Exception) and name not in ("SETNAME", "INFO"):
            raise translate(str(reply), address.label)
    info = replies.get("INFO")
    if isinstance(info, str) and not address.allows_eviction:
        policy = info_field(info, "maxmemory_policy")
        if policy.startswith(EVICTING):
            raise StoreMisconfiguredError(
                address.label,
                f"maxmemory-policy is {policy}, so the server may evict locks that are held",
                "set noeviction or a volatile- policy, or accept the risk with ?eviction=allow",
            )


def _check_role(address: Address, role: Any) -> None:
    """Reject a former primary, which a sentinel may still have named."""
    if isinstance(role, list) and role[:1] != ["master"]:
        raise StoreUnavailableError(
            address.label,
            f"{address.host}:{address.port} is no longer the primary of {address.service!r}",
            "retry: the sentinels are asked again",
        )


def info_field(info: str, name: str) -> str:
    """Return one value of an INFO reply; "" if it is missing."""
    for line in info.splitlines():
        if line.startswith(f"{name}:"):
            return line[len(name) + 1 :].strip()
    return ""


# ── errors ───────────────────────────────────────────────────────────────────────────


def unreachable(address: Address, error: BaseException) -> StoreError:
    """Return the error for a failed connection attempt."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return StoreMisconfiguredError(
            address.label,
            f"its certificate was not accepted ({error.verify_message})",
            certificate_advice(error),
        )
    if isinstance(error, ssl.SSLError) and "CERTIFICATE" in (error.reason or ""):
        # An alert from the server: it did not accept our certificate.
        return StoreMisconfiguredError(
            address.label,
            f"wants another certificate of this client ({error.reason})",
            "name one with ?cert=FILE&key=FILE",
        )
    if isinstance(error, TimeoutError):
        advice = "check whether this port uses TLS" if address.tls is not None else CHECK_ADDRESS
        return StoreUnavailableError(address.label, "did not answer in time", advice)
    reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return StoreUnavailableError(address.label, f"cannot be reached ({reason})", CHECK_ADDRESS)


def handshake_failed(
    address: Address, error: BaseException, alert: ssl.SSLError | None = None
) -> StoreError | None:
    """Return the error for a connection that broke during the handshake; None for `error` itself.

    With TLS 1.3 the server may refuse our certificate after our side of the TLS handshake is
    complete; it then sends an `alert`.
    """
    if isinstance(error.__cause__, ssl.SSLError):
        alert = error.__cause__
    if alert is not None:
        return unreachable(address, alert)
    if isinstance(error, OutcomeUnknownError):
        return StoreUnavailableError(address.label, error.what)
    return None


# ── blocking ─────────────────────────────────────────────────────────────────────────


class Connection:
    """One stream of commands and replies, for one thread at a time."""

    def __init__(
        self, address: Address, until_s: float, *, checked: bool = True, probed: bool = True
    ) -> None:
        if address.sentinels:
            from lockfast.stores.redis.sentinel import primary_of

            address = primary_of(address, until_s)
        self.address = address
        self._reader = ReplyReader()
        try:
            self.stream = Stream(_open(address, left_s(until_s)), spins=address.spins)
        except OSError as error:
            raise unreachable(address, error) from error
        try:
            steps = handshake(address, checked=checked, probed=probed)
            replies = self.exchange_all(list(steps.values()), until_s)
            check_handshake(address, dict(zip(steps, replies, strict=True)))
        except BaseException as error:
            why = handshake_failed(address, error, self._alert())
            self.close()
            if why is None:
                raise
            raise why from error

    def exchange(self, packed: bytes, until_s: float, bytes_max: int = FRAME_BYTES_MAX) -> Any:
        """Send one command and wait for its reply, which may be a ReplyError."""
        # Until the last byte is sent, the server cannot have executed the command.
        try:
            self.stream.send(packed, until_s)
        except OSError as error:
            raise not_sent(self.address.label, error) from error
        return self.receive(until_s, bytes_max)

    def exchange_all(
        self, commands: Sequence[bytes], until_s: float, bytes_max: int = FRAME_BYTES_MAX
    ) -> list[Any]:
        """Send several commands together and wait for their replies."""
        first = self.exchange(b"".join(commands), until_s, bytes_max)
        return [first, *(self.receive(until_s, bytes_max) for _ in commands[1:])]

    def receive(self, until_s: float, bytes_max: int = FRAME_BYTES_MAX) -> Any:
        reader = self._reader
        reader.bytes_max = bytes_max
        try:
            while (reply := reader.gets()) is PENDING:
                data = self.stream.receive(until_s)
                if not data:
                    raise in_doubt(self.address.label)
                reader.feed(data)
            return reply
        except OSError as error:
            raise in_doubt(self.address.label, error) from error
        except ProtocolError as error:
            raise unreadable(self.address.label, error) from error

    def take(self) -> Any:
        """Return a reply that has been fed, or PENDING; for a connection that only listens."""
        return self._reader.gets()

    def feed(self, data: bytes) -> None:
        self._reader.feed(data)

    def _alert(self) -> ssl.SSLError | None:
        """Return the TLS alert that the server sent before it closed, if any."""
        if self.address.tls is not None:
            try:
                self.stream.receive_nowait()
            except ssl.SSLError as alert:
                return alert
            except OSError:
                pass
        return None

    def fileno(self) -> int:
        return self.stream.fileno()

    def close(self) -> None:
        self.stream.close()


def _open(address: Address, timeout_s: float) -> socket.socket:
    until_s = monotonic() + timeout_s
    if address.path:
        opened = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            opened.settimeout(timeout_s)
            opened.connect(address.path)
        except BaseException:
            opened.close()
            raise
        return opened
    opened = socket.create_connection((address.host, address.port), timeout_s)
    try:
        tune(opened)
        if address.tls is not None:
            opened.settimeout(left_s(until_s))
            opened = address.tls.wrap_socket(opened, server_hostname=address.host)
    except BaseException:
        opened.close()
        raise
    return opened
