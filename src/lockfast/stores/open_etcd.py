"""etcd://, etcds://: [user:password@]host[:port][,host[:port]…].

Options: namespace=default, prefix=lockfast; with TLS also ca=, cert=, key= (files) and
verify=on|off.
"""

from __future__ import annotations

from lockfast.ports import Store
from lockfast.stores.etcd.address import parse
from lockfast.stores.registry import Face, StoreUrl


def open_store(url: StoreUrl, face: Face, *, death_watch: bool = True) -> Store:
    address = parse(url)
    if face == "asyncio":
        from lockfast.stores.etcd.aio import AsyncEtcdStore

        return AsyncEtcdStore(address)
    from lockfast.stores.etcd import EtcdStore

    return EtcdStore(address)
