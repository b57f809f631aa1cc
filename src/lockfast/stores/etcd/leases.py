"""The etcd leases that sessions live under, and the sessions whose leases are gone."""

from __future__ import annotations

from typing import Final

from lockfast.errors import StoreError
from lockfast.stores.etcd.gateway import Gateway
from lockfast.stores.etcd.requests import GRANT, KEEP_ALIVE
from lockfast.stores.etcd.rows import Record, decode, end_of, living_key, record_key
from lockfast.stores.etcd.shared import Shared

SWEPT_MAX: Final = 1000
_SESSIONS: Final = (record_key(""), living_key(""))


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


async def dead_sessions(gateway: Gateway, shared: Shared, until_s: float) -> list[str]:
    """Sessions whose leases are gone, though nobody has ended them yet."""
    keys = shared.keys
    reads = [keys.range(prefix, end_of(prefix), SWEPT_MAX) for prefix in _SESSIONS]
    answer = await gateway.txn({"success": reads}, until_s, repeatable=True)
    records, living = (keys.found(response).kvs for response in answer["responses"])
    if len(living) == SWEPT_MAX:
        return []  # more than can be told apart in one look: those who meet them end them
    lives = {kv.key[2:] for kv in living}
    return [
        kv.key[2:]
        for kv in records
        if kv.key[2:] not in lives and not Record(*decode(kv.value)).ended
    ]
