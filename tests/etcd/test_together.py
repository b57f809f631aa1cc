"""Transactions that travel in one request have their own outcomes, and never the same lock."""

from __future__ import annotations

import asyncio

from lockfast.core import commands as c
from lockfast.stores.etcd import EtcdStore
from lockfast.stores.etcd.aio import AsyncHttpNetwork
from lockfast.stores.etcd.gateway import Gateway
from tests.etcd.harness import address_of
from tests.servers.etcd import EtcdCluster


def test_one_of_many_takes_a_free_lock(node: EtcdCluster) -> None:
    """etcd compares for all transactions of a request before it carries out any."""

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
        assert all(isinstance(reply, c.Granted) for reply in replies)
        assert len({reply.token for reply in replies if isinstance(reply, c.Granted)}) == 96
        assert len(calls) <= 4, "one alone, and then 48 together"
        store.close()

    monkeypatch.setattr(Gateway, "call", counted)  # type: ignore[attr-defined]
    asyncio.run(tell())
