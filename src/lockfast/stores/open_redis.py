"""redis://, rediss://, unix://, valkey://, valkeys://: [user:password@]host[:port][/db] or a path.

Options: namespace=default, eviction=refuse|allow; with TLS also ca=, cert=, key= (files) and
verify=on|off.
"""

from __future__ import annotations

from lockfast.errors import UnsupportedError
from lockfast.ports import Store
from lockfast.stores.registry import Face, StoreUrl


def open_store(url: StoreUrl, face: Face, *, death_watch: bool = True) -> Store:
    try:
        import hiredis  # noqa: F401
    except ImportError:
        raise UnsupportedError(
            url.label, "the package hiredis is not installed", "pip install 'lockfast[redis]'"
        ) from None
    from lockfast.stores.redis.address import parse

    address = parse(url)
    if face == "asyncio":
        from lockfast.stores.redis.aio import AsyncRedisStore

        return AsyncRedisStore(address)
    from lockfast.stores.redis import RedisStore

    return RedisStore(address)
