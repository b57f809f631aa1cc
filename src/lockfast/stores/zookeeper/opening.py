"""zookeeper://, zk://, and with TLS zookeepers://, zks://: see `address.py`."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec

from lockfast.errors import StoreMisconfiguredError
from lockfast.ports import Store
from lockfast.stores.diagnosis import Diagnosis, Maintenance
from lockfast.stores.registry import Face, StoreUrl
from lockfast.stores.zookeeper.address import Address, parse


def open_store(url: StoreUrl, face: Face, *, death_watch: bool = True) -> Store:
    address = parse(url)
    _require_kazoo(address)
    from lockfast.stores.zookeeper import ZooKeeperStore
    from lockfast.stores.zookeeper.network import KazooNetwork

    caller = None
    if face == "asyncio":
        from lockfast.stores.zookeeper.aio import AsyncWaiting

        caller = AsyncWaiting()
    return ZooKeeperStore(url.label, address.root, KazooNetwork(address, caller))


def open_maintenance(url: StoreUrl) -> Maintenance:
    address = parse(url)
    _require_kazoo(address)
    return ZooKeeperMaintenance(address)


def _require_kazoo(address: Address) -> None:
    try:
        import kazoo  # noqa: F401
    except ImportError:
        raise StoreMisconfiguredError(
            address.label, "the package kazoo is not installed", "pip install 'lockfast[zookeeper]'"
        ) from None
    if address.sasl and find_spec("puresasl") is None:
        raise StoreMisconfiguredError(
            address.label,
            "sasl=on needs the package pure-sasl, which is not installed",
            "pip install 'kazoo[sasl]'",
        )


class ZooKeeperMaintenance(Maintenance):
    def __init__(self, address: Address) -> None:
        super().__init__(address.label)
        self._address = address

    def examine(self) -> Iterator[Diagnosis]:
        from lockfast.stores.zookeeper.checkup import examine

        return examine(self._address, self.ttl_ms)

    def raise_epoch(self) -> Iterator[Diagnosis]:
        from lockfast.stores.zookeeper.checkup import raise_epoch

        return raise_epoch(self._address)
