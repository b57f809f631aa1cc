"""Connections of the blocking API to the nodes of a cluster, shared by callers and keepers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lockfast.runtimes.threads import ThreadSignal
from lockfast.stores.redis.address import Server
from lockfast.stores.redis.cluster.topology import Channel, Cluster
from lockfast.stores.redis.connection import Connection
from lockfast.stores.redis.pool import ConnectionPool
from lockfast.stores.stream import FRAME_BYTES_MAX


class BlockingLinks:
    """One connection pool per node."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._pools: dict[Server, ConnectionPool] = {}

    @property
    def connections(self) -> int:
        return sum(pool.connections for pool in list(self._pools.values()))

    async def take(self, server: Server, until_s: float) -> Channel:
        pool = self._pools.get(server)
        if pool is None:
            address = self._cluster.address_of(server)
            # Not probed: a node has only some of the shards, and wires probe each of them.
            pool = self._pools.setdefault(server, ConnectionPool(address, probed=False))
        return _BlockingChannel(pool, pool.take(until_s))

    async def pause(self, seconds: float) -> None:
        ThreadSignal().wait_blocking(round(seconds * 1000))

    def close(self) -> None:
        for pool in list(self._pools.values()):
            pool.close()


class _BlockingChannel:
    __slots__ = ("_connection", "_pool")

    def __init__(self, pool: ConnectionPool, connection: Connection) -> None:
        self._pool = pool
        self._connection = connection

    async def exchange(
        self, commands: Sequence[bytes], until_s: float, bytes_max: int = FRAME_BYTES_MAX
    ) -> list[Any]:
        return self._connection.exchange_all(commands, until_s, bytes_max)

    def put_back(self) -> None:
        self._pool.put_back(self._connection)

    def abandon(self, error: BaseException | None = None) -> None:
        # In any case, a reply may still arrive.
        self._connection.close()
