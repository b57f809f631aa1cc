"""redis://, rediss://, unix://, valkey://, valkeys://: [user:password@]host[:port][/db] or a path.

Options: namespace=default, eviction=refuse|allow; with TLS also ca=, cert=, key= (files) and
verify=on|off.
"""

from __future__ import annotations

from collections.abc import Iterator

from lockfast.errors import UnsupportedError
from lockfast.ports import Store
from lockfast.stores.diagnosis import Diagnosis, Maintenance
from lockfast.stores.registry import Face, StoreUrl


def open_store(url: StoreUrl, face: Face, *, death_watch: bool = True) -> Store:
    _require_hiredis(url)
    from lockfast.stores.redis.address import parse

    address = parse(url)
    if face == "asyncio":
        from lockfast.stores.redis.aio import AsyncRedisStore

        return AsyncRedisStore(address)
    from lockfast.stores.redis import RedisStore

    return RedisStore(address)


def open_maintenance(url: StoreUrl) -> Maintenance:
    _require_hiredis(url)
    return RedisMaintenance(url)


class RedisMaintenance(Maintenance):
    def __init__(self, url: StoreUrl) -> None:
        from lockfast.stores.redis.address import parse

        super().__init__(url.label)
        self._address = parse(url)

    def examine(self) -> Iterator[Diagnosis]:
        from lockfast.stores.redis.checkup import examine

        return examine(self._address)


def _require_hiredis(url: StoreUrl) -> None:
    try:
        import hiredis  # noqa: F401
    except ImportError:
        raise UnsupportedError(
            url.label, "the package hiredis is not installed", "pip install 'lockfast[redis]'"
        ) from None
