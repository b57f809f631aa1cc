"""zookeeper://, zk://, and with TLS zookeepers://, zks://: what `address.py` describes."""

from __future__ import annotations

from lockfast.errors import StoreMisconfiguredError
from lockfast.ports import Store
from lockfast.stores.registry import Face, StoreUrl
from lockfast.stores.zookeeper.address import parse


def open_store(url: StoreUrl, face: Face, *, death_watch: bool = True) -> Store:
    address = parse(url)
    try:
        import kazoo  # noqa: F401
    except ImportError:
        raise StoreMisconfiguredError(
            url.label, "needs kazoo, which is not installed", "pip install 'lockfast[zookeeper]'"
        ) from None
    from lockfast.stores.zookeeper import ZooKeeperStore

    if face == "asyncio":
        from lockfast.stores.zookeeper.aio import AsyncKazooNetwork

        return ZooKeeperStore(url.label, address.root, AsyncKazooNetwork(address))
    from lockfast.stores.zookeeper.network import KazooNetwork

    return ZooKeeperStore(url.label, address.root, KazooNetwork(address))
