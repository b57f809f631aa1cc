"""A connection of our own: packed commands out, hiredis replies in, nothing tried twice.

Whoever has its outcome in doubt throws the connection away: a late reply must never be
taken for the answer to another command.
"""

from __future__ import annotations

import socket
import ssl
from collections.abc import Sequence
from time import monotonic
from typing import Any, Final

import hiredis

from lockfast.errors import (
    OutcomeUnknownError,
    StoreError,
    StoreMisconfiguredError,
    StoreUnavailableError,
)
from lockfast.stores.redis.address import Address
from lockfast.stores.redis.errors import translate
from lockfast.stores.redis.scripts import inbox_of, keys_of, probe
from lockfast.stores.stream import Stream, in_doubt, left_s, not_sent, unreadable

PENDING: Final = object()
"""What a reader returns while a reply is not complete."""
EVICTING: Final = "allkeys-"
"""Policies that take keys without a TTL, as all of ours are. Others never touch them."""


def new_reader() -> Any:
    return hiredis.Reader(encoding="utf-8", errors="replace", notEnoughData=PENDING)


_pack: Any = hiredis.pack_command  # its stub knows one argument only


def pack(*arguments: str | bytes | int) -> bytes:
    packed: bytes = _pack(arguments)
    return packed


def pack_four(a: str, b: str, c: str, d: str) -> bytes:
    """Four arguments as `pack` packs them, without the count before them, and in half the time."""
    text = f"${len(a)}\r\n{a}\r\n${len(b)}\r\n{b}\r\n${len(c)}\r\n{c}\r\n${len(d)}\r\n{d}\r\n"
    if text.isascii():
        return text.encode()
    return pack(a, b, c, d)[len(b"*4\r\n") :]


# ── the greeting, the same for both faces ────────────────────────────────────────────


def greeting(address: Address, *, first: bool) -> list[bytes]:
    """What is sent on a new connection; `first`: of this store, with a look at the server."""
    commands = []
    if address.username:
        commands.append(pack("AUTH", address.username, address.password))
    elif address.password:
        commands.append(pack("AUTH", address.password))
    if address.db:
        commands.append(pack("SELECT", address.db))
    commands.append(pack("CLIENT", "SETNAME", "lockfast"))
    if first:
        commands.append(pack("INFO", "memory"))
        keys = keys_of(address.namespace)
        channel = inbox_of(address.namespace, "probe")
        commands.append(pack("EVAL", probe().body, len(keys), *keys, channel))
    return commands


def check_greeting(address: Address, replies: Sequence[Any], *, first: bool) -> None:
    """Raise unless the server let us in and is fit to keep locks."""
    needed = list(replies)
    info = None
    if first:
        info = needed.pop(-2)
    # To have a name is a courtesy to whoever reads CLIENT LIST.
    needed.pop(-2 if first else -1)
    for reply in needed:
        if isinstance(reply, Exception):
            raise translate(str(reply), address.label)
    if isinstance(info, str) and not address.allows_eviction:
        policy = info_field(info, "maxmemory_policy")
        if policy.startswith(EVICTING):
            raise StoreMisconfiguredError(
                address.label,
                f"maxmemory-policy is {policy}, so the server may drop locks that are held",
                "set noeviction (or a volatile- policy), or write ?eviction=allow",
            )


def info_field(info: str, name: str) -> str:
    """One value of an INFO reply; "" if it is not there."""
    for line in info.splitlines():
        if line.startswith(f"{name}:"):
            return line[len(name) + 1 :].strip()
    return ""


# ── errors ───────────────────────────────────────────────────────────────────────────


def unreachable(address: Address, error: BaseException) -> StoreError:
    """Why there is no connection."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return StoreMisconfiguredError(
            address.label,
            f"its certificate is not accepted ({error.verify_message})",
            "write ?ca=file, or have the certificate renewed",
        )
    if isinstance(error, ssl.SSLError) and "CERTIFICATE" in (error.reason or ""):
        # An alert of the other side: it is ours that is not accepted.
        return StoreMisconfiguredError(
            address.label,
            f"wants another certificate of this client ({error.reason})",
            "write ?cert=file&key=file",
        )
    if isinstance(error, TimeoutError):
        return StoreUnavailableError(address.label, "did not answer in time")
    reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return StoreUnavailableError(address.label, f"cannot be reached ({reason})")


def not_let_in(
    address: Address, error: BaseException, alert: ssl.SSLError | None = None
) -> StoreError | None:
    """Why a connection that was made did not last until the end of the greeting.

    None: for `error`, as it is. With TLS the other side may take offence at our certificate
    only after it has let us in; what it says then is an `alert`.
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

    def __init__(self, address: Address, until_s: float, *, first: bool = False) -> None:
        self.address = address
        self._reader = new_reader()
        try:
            self.stream = Stream(_open(address, left_s(until_s)))
        except OSError as error:
            raise unreachable(address, error) from error
        try:
            commands = greeting(address, first=first)
            replies = self.exchange_all(commands, until_s)
            check_greeting(address, replies, first=first)
        except BaseException as error:
            why = not_let_in(address, error, self._alert())
            self.close()
            if why is None:
                raise
            raise why from error

    def exchange(self, packed: bytes, until_s: float) -> Any:
        """Send one command and wait for its reply, which may be an exception."""
        # As long as the last byte is not out, the server cannot have carried it out.
        try:
            self.stream.send(packed, until_s)
        except OSError as error:
            raise not_sent(self.address.label, error) from error
        return self.receive(until_s)

    def exchange_all(self, commands: Sequence[bytes], until_s: float) -> list[Any]:
        """Send some commands in one go."""
        first = self.exchange(b"".join(commands), until_s)
        return [first, *(self.receive(until_s) for _ in commands[1:])]

    def receive(self, until_s: float) -> Any:
        reader = self._reader
        try:
            while (reply := reader.gets()) is PENDING:
                data = self.stream.receive(until_s)
                if not data:
                    raise in_doubt(self.address.label)
                reader.feed(data)
            return reply
        except OSError as error:
            raise in_doubt(self.address.label, error) from error
        except hiredis.ProtocolError as error:
            raise unreadable(self.address.label, error) from error

    def take(self) -> Any:
        """A reply that is there already, or PENDING; for a connection that only listens."""
        return self._reader.gets()

    def feed(self, data: bytes) -> None:
        self._reader.feed(data)

    def _alert(self) -> ssl.SSLError | None:
        """What the other side said before it hung up, if it speaks TLS."""
        if self.address.tls is not None:
            try:
                self.stream.receive_nowait()
            except ssl.SSLError as alert:
                return alert
            except OSError:
                pass
        return None

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


def tune(opened: socket.socket) -> None:
    """No delay for small requests, and word of a server that is gone without a good-bye."""
    opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    opened.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (("TCP_KEEPIDLE", 10), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 3)):
        if hasattr(socket, name):
            opened.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
