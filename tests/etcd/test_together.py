"""Transactions batched in one request have their own outcomes, and never share a lock."""

from __future__ import annotations

import asyncio
import re

import pytest

from lockfast.core import commands as c
from lockfast.errors import StoreUnavailableError
from lockfast.runtimes.aio import LoopSignal
from lockfast.stores.etcd import EtcdStore
from lockfast.stores.etcd.aio import AsyncHttpNetwork
from lockfast.stores.etcd.batches import Batches, Committed, Proposal
from lockfast.stores.etcd.gateway import Gateway
from lockfast.stores.etcd.layout import STRIDE
from lockfast.stores.etcd.requests import Answer, Keys
from tests.etcd.harness import address_of
from tests.servers.etcd import EtcdCluster

REVISION = 7
TOKENS = 2
EPOCH = 1_000_000


def test_one_of_many_takes_a_free_lock(node: EtcdCluster) -> None:
    """etcd evaluates the comparisons of all transactions in a request before it executes any."""

    async def tell() -> None:
        address = address_of(node.url())
        store = EtcdStore(address, AsyncHttpNetwork(address))
        wire = store.caller_wire()
        await wire.send(c.Open("s", 30_000, "owner"), 5000)
        await wire.send(c.Enter("s", 1, (c.Place("lock", "warm", "exclusive"),)), 5000)
        places = [c.Place("lock", f"orders/{n % 10}", "exclusive") for n in range(60)]
        replies = await asyncio.gather(
            *(wire.send(c.Enter("s", n + 2, (place,)), 9000) for n, place in enumerate(places))
        )
        granted = [p.name for p, r in zip(places, replies, strict=True) if isinstance(r, c.Granted)]
        assert sorted(granted) == sorted({place.name for place in places})
        tokens = [reply.token for reply in replies if isinstance(reply, c.Granted)]
        assert len(set(tokens)) == len(tokens)
        store.close()

    asyncio.run(tell())


def test_many_locks_take_few_requests(node: EtcdCluster, monkeypatch: object) -> None:
    calls: list[str] = []
    call = Gateway.call

    async def counted(self: Gateway, path: str, *rest: object, **more: object) -> object:
        calls.append(path)
        return await call(self, path, *rest, **more)  # type: ignore[arg-type]

    async def tell() -> None:
        address = address_of(node.url())
        store = EtcdStore(address, AsyncHttpNetwork(address))
        wire = store.caller_wire()
        await wire.send(c.Open("s", 30_000, "owner"), 5000)
        await wire.send(c.Enter("s", 1, (c.Place("lock", "warm", "exclusive"),)), 5000)
        calls.clear()
        places = [c.Place("lock", f"orders/{n}", "exclusive") for n in range(96)]
        replies = await asyncio.gather(
            *(wire.send(c.Enter("s", n + 2, (place,)), 9000) for n, place in enumerate(places))
        )
        tokens = {n + 2: r.token for n, r in enumerate(replies) if isinstance(r, c.Granted)}
        assert len(set(tokens.values())) == 96
        assert len(calls) <= 8, "two alone, and then up to 48 together"
        stored = await wire.send(c.Claims("s"), 9000)
        assert isinstance(stored, c.ClaimsReply)
        assert {view.n: view.token for view in stored.claims if view.n > 1} == tokens
        store.close()

    monkeypatch.setattr(Gateway, "call", counted)  # type: ignore[attr-defined]
    asyncio.run(tell())


class Batched:
    """Transactions whose requests are answered when the test says so."""

    def __init__(self) -> None:
        network = AsyncHttpNetwork(address_of("etcd://nowhere"))
        self.sent: list[str] = []
        self._replies: list[asyncio.Future[Answer]] = []
        self._batches = Batches("", network, LoopSignal, self._request, True)
        self._now_ms = network.now_ms
        self.callers: list[asyncio.Task[Committed]] = []

    async def _request(self, body: str, until_ms: int, repeatable: bool) -> Answer:
        self.sent.append("".join(re.findall('"request_txn":(.)', body)) or body)
        self._replies.append(asyncio.get_running_loop().create_future())
        return await self._replies[-1]

    async def send(self, resources: str, span_ms: int = 60_000) -> None:
        """Send one transaction for each resource, which is a letter. Each allocates tokens."""
        for name in resources:
            writes = frozenset([f"n {name}"])
            proposal = Proposal(lambda slot, name=name: name, 1, writes, TOKENS)  # type: ignore[misc]
            caller = self._batches.send(proposal, self._now_ms() + span_ms)
            self.callers.append(asyncio.create_task(caller))
        await asyncio.sleep(0)

    async def answer(self, index: int) -> None:
        nested = [{"response_txn": {"succeeded": True}}] * len(self.sent[index])
        fields = {"header": {"revision": str(REVISION)}, "succeeded": True, "responses": nested}
        self._replies[index].set_result(Answer(Keys("", ""), fields))
        for _ in range(5):
            await asyncio.sleep(0)  # the sender, and the callers that it appoints

    async def finish(self) -> list[Committed]:
        """Answer all requests; return the results, in the order of the calls."""
        for index, reply in enumerate(self._replies):
            if not reply.done():
                await self.answer(index)
        return await asyncio.gather(*self.callers)


def test_a_second_request_is_sent_once_as_many_wait_as_are_in_flight() -> None:
    async def tell() -> None:
        batched = Batched()
        await batched.send("a")
        await batched.send("b")
        assert batched.sent == ["a", "b"], "a single caller need not wait for another"
        await batched.send("cde")
        assert batched.sent == ["a", "b"]
        await batched.answer(0)
        assert batched.sent == ["a", "b", "cd"]
        await batched.answer(1)
        assert batched.sent == ["a", "b", "cd"]
        await batched.answer(2)
        assert batched.sent == ["a", "b", "cd", "e"]
        await batched.finish()

    asyncio.run(tell())


def test_a_request_does_not_overtake_one_that_concerns_the_same_resource() -> None:
    """Callers of one client that join a queue expect to be served in the order of their calls."""

    async def tell() -> None:
        batched = Batched()
        await batched.send("a")
        await batched.send("a")
        await batched.send("b")
        assert batched.sent == ["a", "b"]
        await batched.answer(1)
        assert batched.sent == ["a", "b"]
        await batched.answer(0)
        assert batched.sent == ["a", "b", "a"]
        await batched.finish()

    asyncio.run(tell())


def test_transactions_of_one_request_have_different_tokens() -> None:
    """They share a revision, and their tokens rise in the order of the calls."""

    async def tell() -> None:
        batched = Batched()
        await batched.send("ab")
        await batched.send("cd")
        await batched.answer(0)
        assert batched.sent == ["a", "b", "cd"]
        *_, first, second = await batched.finish()
        tokens = [each.token(EPOCH, at) for each in (first, second) for at in range(TOKENS)]
        lowest = EPOCH + STRIDE * REVISION
        assert tokens == [lowest, lowest + 1, lowest + 2, lowest + 3]

    asyncio.run(tell())


def test_a_transaction_that_waited_too_long_is_never_sent() -> None:
    """Its caller may say that nothing was executed."""

    async def tell() -> None:
        batched = Batched()
        await batched.send("ab")
        await batched.send("c", span_ms=1)
        await batched.send("d")
        late = batched.callers.pop(2)
        with pytest.raises(StoreUnavailableError, match="took too long"):
            await late
        await batched.finish()
        assert batched.sent == ["a", "b", "d"]

    asyncio.run(tell())
