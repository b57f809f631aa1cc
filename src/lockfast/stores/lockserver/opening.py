"""http://, https://: host[:port][,host[:port]…]; http+unix:///path.

Options: namespace=default, token_file=; with https also ca=, cert=, key= (files) and
verify=on|off; insecure=on permits a token over http to another machine.
"""

from __future__ import annotations

from lockfast.ports import Store
from lockfast.stores.diagnosis import Maintenance
from lockfast.stores.lockserver.address import parse
from lockfast.stores.registry import Face, StoreUrl


def open_maintenance(url: StoreUrl) -> Maintenance:
    return Maintenance(
        url.label, "run it on the server's machine, with the URL of the server's store"
    )


def open_store(url: StoreUrl, face: Face, *, death_watch: bool = True) -> Store:
    from lockfast.stores.lockserver.store import ServerStore

    address = parse(url)
    if face == "asyncio":
        from lockfast.stores.lockserver.aio import AsyncHttpNetwork

        return ServerStore(address, AsyncHttpNetwork(address))
    return ServerStore(address)
