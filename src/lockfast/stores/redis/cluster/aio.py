"""Redis Cluster for asyncio: one connection per node, shared by all tasks of a client."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from time import monotonic
from typing import Any

from lockfast.errors import OutcomeUnknownError
from lockfast.stores.redis.address import Server
from lockfast.stores.redis.aio import AsyncConnection, AsyncLink
from lockfast.stores.redis.cluster.store import ClusterStore
from lockfast.stores.redis.cluster.topology import Channel, Cluster, Links
from lockfast.stores.stream import FRAME_BYTES_MAX


class AsyncClusterStore(ClusterStore):
    """A client's connections to one namespace, for the asyncio API."""

    def _caller_links(self) -> Links:
        return AsyncLinks(self._cluster)


class AsyncLinks:
    """One connection per node, for one event loop."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._links: dict[Server, AsyncLink] = {}
        self.connections = 0

    async def take(self, server: Server, until_s: float) -> Channel:
        loop = asyncio.get_running_loop()
        link = self._links.get(server)
        if link is None:
            link = self._links[server] = AsyncLink(self._cluster.address_of(server), probed=False)
        connection = link.connection
        if connection is None or not connection.is_usable or connection.loop is not loop:
            self.connections += 1
            connection = await link.connected(loop, _loop_time(loop, until_s))
        return _AsyncChannel(connection)

    async def pause(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    def close(self) -> None:
        for link in self._links.values():
            link.close()


class _AsyncChannel:
    __slots__ = ("_connection",)

    def __init__(self, connection: AsyncConnection) -> None:
        self._connection = connection

    async def exchange(
        self, commands: Sequence[bytes], until_s: float, bytes_max: int = FRAME_BYTES_MAX
    ) -> list[Any]:
        connection = self._connection
        at_s = _loop_time(connection.loop, until_s)
        replies = [connection.request(packed, at_s, bytes_max) for packed in commands]
        return [await reply for reply in replies]

    def put_back(self) -> None:
        """Do nothing: the connection stays shared."""

    def abandon(self, error: BaseException | None = None) -> None:
        # The connection skips the reply of a task that was cancelled.
        if error is None or isinstance(error, OutcomeUnknownError):
            self._connection.retire()


def _loop_time(loop: asyncio.AbstractEventLoop, until_s: float) -> float:
    return loop.time() + until_s - monotonic()
