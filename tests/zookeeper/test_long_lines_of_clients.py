"""Long queues on a real server: order of arrival, wakes, and bytes read for each grant."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack
from itertools import pairwise

import pytest

import lockfast.aio
from lockfast.core import commands as c
from lockfast.runtimes.threads import run
from lockfast.stores.derived.steps import Outcome
from lockfast.stores.registry import parse_url
from lockfast.stores.zookeeper.opening import open_store
from lockfast.stores.zookeeper.wire import ZooKeeperWire
from tests.servers.proxy import Proxy
from tests.servers.zookeeper import ZooKeeperEnsemble

A = c.Place("lock", "a", "exclusive")
TTL_MS = 600_000
CLIENTS = 10
PATIENCE_S = 100.0


@pytest.fixture
def proxy(node: ZooKeeperEnsemble) -> Iterator[Proxy]:
    """It counts the bytes that pass."""
    with Proxy(("127.0.0.1", node.members[0].port)) as started:
        yield started


class Client:
    """One session without a keeper, so that only the test sends commands."""

    def __init__(self, url: str, number: int) -> None:
        self.id = f"session-{number}"
        self.store = open_store(parse_url(url), "threads")
        wire = self.store.caller_wire()
        assert isinstance(wire, ZooKeeperWire)
        self._wire = wire
        self._until_ms = wire.context.network.now_ms() + TTL_MS

    def _step(self, command: c.Command) -> Outcome:
        return run(self._wire.step(command, self._until_ms))

    def enter(self, n: int) -> c.Reply:
        opening = c.Open(self.id, TTL_MS, f"owner of {self.id}")
        return self._step(c.Enter(self.id, n, (A,), open=opening)).reply

    def leave(self, n: int) -> Outcome:
        return self._step(c.Leave(self.id, n))

    def look(self, n: int) -> c.Reply:
        return self._step(c.Look(self.id, n)).reply


def test_1000_waiters_are_served_in_order_by_one_wake_and_few_bytes_each(
    proxy: Proxy, record_property: Callable[[str, object], None]
) -> None:
    read: dict[int, float] = {}
    for count in (200, 1000):
        clients = [
            Client(f"zookeeper://{proxy.address}?namespace=line-{count}", i) for i in range(CLIENTS)
        ]
        arrived = [(clients[i % CLIENTS], 1 + i // CLIENTS) for i in range(count + 1)]
        assert isinstance(arrived[0][0].enter(1), c.Granted)
        for client, n in arrived[1:]:
            assert isinstance(client.enter(n), c.Queued)
        tokens: list[int] = []
        before = proxy.passed("reply")
        for (client, n), (heir, its_n) in pairwise(arrived):
            wakes = client.leave(n).wakes
            assert [(wake.session, wake.n, wake.what) for wake in wakes] == [
                (heir.id, its_n, c.WAKE_GRANTED)
            ]
            tokens.append(wakes[0].token)
            if len(tokens) == count // 2:
                # In the second half the line is short: it would hide the cost of a long one.
                read[count] = (proxy.passed("reply") - before) / len(tokens)
        last, n = arrived[-1]
        assert isinstance(last.look(n), c.Granted)
        assert tokens == sorted(set(tokens))
        for client in clients:
            client.store.close()
        record_property(f"measured read per grant, {count} waiting", f"{read[count]:.0f} B")
    assert read[1000] < 1.5 * read[200]


def test_200_that_arrive_together_are_all_served(node: ZooKeeperEnsemble) -> None:
    """Claims that join at the same moment do not keep each other from joining."""
    count = 200
    tokens: list[int] = []

    async def take(client: lockfast.aio.Client) -> None:
        async with client.lock("a") as lease:
            tokens.append(lease.token)

    async def contend() -> None:
        async with AsyncExitStack() as stack:
            clients = [
                await stack.enter_async_context(
                    lockfast.aio.connect(node.url("herd"), ttl=60, connect_timeout=PATIENCE_S)
                )
                for _ in range(CLIENTS)
            ]
            async with asyncio.timeout(PATIENCE_S):
                await asyncio.gather(*(take(clients[i % CLIENTS]) for i in range(count)))

    asyncio.run(contend())
    assert len(tokens) == count
    assert tokens == sorted(set(tokens))
