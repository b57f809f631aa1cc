"""The network for asyncio: callers suspend, keepers stay on their threads."""

from __future__ import annotations

from lockfast.stores.http.asynchronous import AsyncPool
from lockfast.stores.lockserver.network import HttpNetwork, HttpTransport
from lockfast.stores.lockserver.transport import Transport


class AsyncHttpNetwork(HttpNetwork):
    def caller_transport(self) -> Transport:
        return HttpTransport(self.members, AsyncPool(self.members))
