"""The Redis store: the lock table as Lua scripts, each command one script and one round trip.

URLs: redis://, rediss://, unix://, valkey://, valkeys://, valkey+unix://, as
[user:password@]host[:port][/db] or as a path; redis+sentinel:// and valkey+sentinel:// name
sentinels and a service. Options: namespace=default, eviction=refuse|allow, spin=on|off, wait=N;
with TLS also ca=, cert=, key= (files) and verify=on|off.
"""

from __future__ import annotations

from lockfast.ports import Store
from lockfast.stores.diagnosis import Maintenance
from lockfast.stores.redis.address import parse
from lockfast.stores.registry import Face, StoreUrl


def open_store(url: StoreUrl, face: Face, *, death_watch: bool = True) -> Store:
    """Open the store. `death_watch` has no effect: a server cannot observe client processes."""
    address = parse(url)
    if face == "asyncio":
        from lockfast.stores.redis.aio import AsyncRedisStore

        return AsyncRedisStore(address)
    from lockfast.stores.redis.store import RedisStore

    return RedisStore(address)


def open_maintenance(url: StoreUrl) -> Maintenance:
    """Return the maintenance of a namespace; does not connect yet."""
    from lockfast.stores.redis.maintenance import RedisMaintenance

    return RedisMaintenance(parse(url))
