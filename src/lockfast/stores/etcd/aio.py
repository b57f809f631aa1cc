"""The etcd store for asyncio: callers suspend, keepers stay on their threads."""

from __future__ import annotations

from lockfast.runtimes.aio import LoopSignal
from lockfast.stores.etcd.network import HttpNetwork, HttpTransport
from lockfast.stores.etcd.transport import Transport
from lockfast.stores.http.asynchronous import AsyncPool


class AsyncHttpNetwork(HttpNetwork):
    """An HttpNetwork whose callers are tasks of an event loop."""

    def caller_transport(self) -> Transport:
        return HttpTransport(self.members, AsyncPool(self.members), LoopSignal)
