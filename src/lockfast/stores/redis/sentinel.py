"""Ask the sentinels for the primary.

A sentinel that is cut off may still name a primary that has been replaced. So a majority of the
sentinels in the URL must answer, and the answer with the latest failover (the highest config epoch)
counts. The handshake of every connection checks the ROLE of the server that was found.
"""

from __future__ import annotations

from time import monotonic
from typing import Any, Final, NamedTuple

from lockfast.errors import StoreError, StoreMisconfiguredError, StoreUnavailableError
from lockfast.stores.redis.address import Address, Server
from lockfast.stores.redis.connection import Connection
from lockfast.stores.redis.resp import pack

PATIENCE_S: Final = 0.5
"""How long to wait for one sentinel before asking the next."""


class _Answer(NamedTuple):
    epoch: int
    primary: Server


def primary_of(address: Address, until_s: float) -> Address:
    """Return the address of the primary. Raises StoreUnavailableError if none is known."""
    majority = len(address.sentinels) // 2 + 1
    answers: list[_Answer] = []
    failed: StoreError | None = None
    for sentinel in address.sentinels:
        try:
            answers.append(_ask(address, sentinel, min(until_s, monotonic() + PATIENCE_S)))
        except StoreMisconfiguredError:
            raise
        except StoreError as error:
            failed = error
        if len(answers) == majority:
            primary = max(answers).primary
            return address._replace(host=primary.host, port=primary.port, sentinels=())
    what = f"{len(answers)} of {len(address.sentinels)} sentinels name a primary, {majority} must"
    why = f" ({failed.what})" if failed is not None else ""
    raise StoreUnavailableError(address.label, what + why, "check the sentinels") from failed


def _ask(address: Address, sentinel: Server, until_s: float) -> _Answer:
    own = Address(
        f"sentinel {sentinel.host}:{sentinel.port} of {address.label}",
        sentinel.host,
        sentinel.port,
        username=address.sentinel_username,
        password=address.sentinel_password,
        spins=False,
    )
    connection = Connection(own, until_s, checked=False)
    try:
        reply = connection.exchange(pack("SENTINEL", "MASTER", address.service), until_s)
    finally:
        connection.close()
    if isinstance(reply, Exception):
        if "No such master" in str(reply):
            raise StoreMisconfiguredError(
                address.label,
                f"the sentinels do not know a service {address.service!r}",
                "write the name from `sentinel monitor` behind the last slash",
            )
        raise StoreUnavailableError(own.label, f"answered {str(reply)[:200]!r}")
    return _answer(own, reply)


def _answer(sentinel: Address, reply: Any) -> _Answer:
    try:
        fields = dict(zip(reply[::2], reply[1::2], strict=True))
        port = int(fields["port"])
        if not fields["ip"] or not 0 < port < 65536:
            raise ValueError
        return _Answer(int(fields["config-epoch"]), Server(str(fields["ip"]), port))
    except (TypeError, ValueError, KeyError):
        raise StoreUnavailableError(
            sentinel.label, "gave an answer that names no primary"
        ) from None
