"""etcd://, etcds://: [user:password@]host[:port][,host[:port]…].

Options: namespace=default, prefix=lockfast; with TLS also ca=, cert=, key= (files) and
verify=on|off.
"""

from __future__ import annotations

from collections.abc import Iterator

from lockfast.ports import Store
from lockfast.stores.diagnosis import Diagnosis, Maintenance
from lockfast.stores.etcd.address import parse
from lockfast.stores.registry import Face, StoreUrl


def open_store(url: StoreUrl, face: Face, *, death_watch: bool = True) -> Store:
    from lockfast.stores.etcd import EtcdStore

    address = parse(url)
    if face == "asyncio":
        from lockfast.stores.etcd.aio import AsyncHttpNetwork

        return EtcdStore(address, AsyncHttpNetwork(address))
    return EtcdStore(address)


def open_maintenance(url: StoreUrl) -> Maintenance:
    return EtcdMaintenance(url)


class EtcdMaintenance(Maintenance):
    def __init__(self, url: StoreUrl) -> None:
        super().__init__(url.label)
        self._address = parse(url)

    def examine(self) -> Iterator[Diagnosis]:
        from lockfast.stores.etcd.checkup import examine

        return examine(self._address)

    def raise_epoch(self) -> Iterator[Diagnosis]:
        from lockfast.stores.etcd.checkup import examine

        return examine(self._address, raises_epoch=True)
