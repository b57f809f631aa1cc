"""A crowd of tasks that enters one lock must form a queue, at about one write for each task.

Each claim first tried to create the lock, failed, read the whole queue, waited for its turn, read
the queue again and only then joined a bucket, which conflicts with nothing: nine requests for each
claim, most of them one after the other. With 250 tasks in each of four clients the last ones
waited longer than `connect_timeout`; they then failed with StoreUnavailableError, as if the store
were down, and so did the others.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from lockfast.core import commands as c
from lockfast.errors import StoreBusyError
from lockfast.ports import Signal
from lockfast.runtimes.aio import LoopSignal
from lockfast.runtimes.threads import run
from lockfast.stores.zookeeper import ZooKeeperStore
from lockfast.stores.zookeeper.layout import Sizes
from lockfast.stores.zookeeper.transport import Answer, Flight, Multi, Request
from tests.zookeeper.model import ModelNetwork, ModelServer

A = c.Place("lock", "a", "exclusive")
CROWD = 250
TIMEOUT_MS = 30_000


class LoopNetwork(ModelNetwork):
    """A network whose callers are tasks of an event loop: all send before the first hears."""

    async def wait(self, flight: Flight, timeout_ms: int) -> Sequence[Answer]:
        await asyncio.sleep(0)
        return await super().wait(flight, timeout_ms)

    def signal(self) -> Signal:
        return LoopSignal()


class Client:
    def __init__(self, network: ModelNetwork, session: str) -> None:
        self.id = session
        self.wire = ZooKeeperStore("zookeeper://model", "/lockfast/default", network).caller_wire()

    async def enter(self, n: int) -> c.Reply:
        opening = c.Open(self.id, TIMEOUT_MS, f"owner of {self.id}")
        return await self.wire.send(c.Enter(self.id, n, (A,), open=opening), TIMEOUT_MS)

    async def leave(self, n: int) -> c.Reply:
        return await self.wire.send(c.Leave(self.id, n), TIMEOUT_MS)

    async def look(self, n: int) -> c.Reply:
        return await self.wire.send(c.Look(self.id, n), TIMEOUT_MS)


async def arrive_together(clients: Sequence[Client]) -> None:
    entering = (client.enter(n) for n in range(1, CROWD + 1) for client in clients)
    for reply in await asyncio.gather(*entering):
        assert isinstance(reply, c.Queued)


@pytest.mark.parametrize("count", [1, 4])
def test_a_crowd_joins_a_long_queue_by_one_write_each(count: int) -> None:
    server, sent = ModelServer(), list[Request]()

    async def main() -> None:
        holder = Client(LoopNetwork(server), "holder")
        assert isinstance(await holder.enter(1), c.Granted)
        server.before = sent.append
        await arrive_together([Client(LoopNetwork(server), f"s{i}") for i in range(count)])

    asyncio.run(main())
    attempts = sum(isinstance(request, Multi) for request in sent)
    assert attempts <= 1.1 * count * CROWD, "also those that fail"
    assert len(sent) <= 2 * count * CROWD, "claims share their reads"
    buckets = [len(node.children) for path, node in server.state.nodes.items() if "/q" in path]
    limit = Sizes().bucket_max + count * Sizes().joins_per_read
    assert max(buckets) <= limit, "a hand-over reads all names in a bucket"


def test_a_crowd_is_served_in_order_of_arrival() -> None:
    server = ModelServer()

    async def main() -> None:
        holder, crowd = (Client(LoopNetwork(server), session) for session in ("holder", "crowd"))
        await holder.enter(1)
        await arrive_together([crowd])
        await holder.leave(1)
        for n in range(1, CROWD + 1):
            assert isinstance(await crowd.look(n), c.Granted), n
            assert await crowd.leave(n) == c.Done()

    asyncio.run(main())


def test_a_store_that_answered_is_busy_and_not_unavailable() -> None:
    """A step that ran out of time between two requests is no sign of an outage."""
    server = ModelServer()
    holder, other = (Client(ModelNetwork(server), session) for session in ("holder", "other"))
    run(holder.enter(1))
    run(other.enter(1))
    run(other.leave(1))
    server.now_us += 1000 * TIMEOUT_MS  # so that it must read what it has written

    def delay(request: Request) -> None:
        server.now_us += 1000 * TIMEOUT_MS

    server.before = delay
    with pytest.raises(StoreBusyError, match="no time left"):
        run(other.enter(2))
