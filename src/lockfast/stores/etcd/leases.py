"""The etcd leases that sessions live under, and the sessions whose leases are gone.

Ending a session with many claims takes several transactions. The first takes its life and
leaves word of how it ends, so whoever meets it can go on where another stopped.
"""

from __future__ import annotations

from typing import Final

from lockfast.core import commands as c
from lockfast.core.reading import EXPIRED
from lockfast.core.rows import Session
from lockfast.errors import StoreError
from lockfast.stores.etcd.gateway import Gateway
from lockfast.stores.etcd.requests import GRANT, KEEP_ALIVE
from lockfast.stores.etcd.rows import Record, decode, end_of, living_key, record_key
from lockfast.stores.etcd.shared import Shared

SWEPT_MAX: Final = 1000
_SESSIONS: Final = (record_key(""), living_key(""))


def sentence_of(row: Session, command: c.Command) -> tuple[str, ...]:
    """Word of how a session ends, for those who go on."""
    if isinstance(command, c.RevokeSession):
        return ("revoked", row.ended, command.reason)
    return ("closed" if isinstance(command, c.Close) else "expired", row.ended)


def ending_of(session: str, record: Record) -> c.Command:
    """What ends a session that lives no more."""
    if not record.sentence:
        return c.Expel(session, EXPIRED)
    how, ended, *reason = record.sentence
    if how == "revoked":
        return c.RevokeSession(session, record.by, reason[0])
    return c.Close(session) if how == "closed" else c.Expel(session, ended)


async def have_lease(
    gateway: Gateway, shared: Shared, session: str, ttl_s: int, until_s: float
) -> None:
    """Have the lease that a session is to live under, whole."""
    lease = {"ID": str(shared.lease_of(session)), "TTL": str(ttl_s)}
    try:
        await gateway.call(GRANT, lease, until_s)
    except StoreError as error:
        if "lease already exists" not in str(error):
            raise
        await gateway.call(KEEP_ALIVE, {"ID": lease["ID"]}, until_s)


async def dead_sessions(gateway: Gateway, shared: Shared, until_s: float) -> list[c.Command]:
    """What ends the sessions that live no more, though nobody has ended them yet."""
    keys = shared.keys
    reads = [keys.range(prefix, end_of(prefix), SWEPT_MAX) for prefix in _SESSIONS]
    answer = await gateway.txn({"success": reads}, until_s, repeatable=True)
    records, living = (keys.found(response).kvs for response in answer["responses"])
    if len(living) == SWEPT_MAX:
        return []  # more than can be told apart in one look: those who meet them end them
    lives = {kv.key[2:] for kv in living}
    found = [(kv.key[2:], Record(*decode(kv.value))) for kv in records]
    return [
        ending_of(session, record)
        for session, record in found
        if session not in lives and not record.ended
    ]
