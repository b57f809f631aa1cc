"""Read-write locks: readers together, a writer alone, in order of arrival."""

from __future__ import annotations

import time
from collections import deque
from typing import Any

import pytest

import lockfast
from tests.primitives.world import World


async def test_readers_hold_together_and_a_writer_alone(world: World) -> None:
    one, two, three = world.clients(3)
    async with one.rwlock("book").read(), two.rwlock("book").read():
        assert await three.rwlock("book").write().try_acquire() is None
    async with one.rwlock("book").write():
        assert await two.rwlock("book").read().try_acquire() is None
        assert await two.rwlock("book").write().try_acquire() is None


async def test_a_plain_lock_is_the_writer_of_the_same_name(world: World) -> None:
    one, two = world.clients(2)
    async with one.rwlock("book").read():
        assert await two.lock("book").try_acquire() is None
    async with one.lock("book"):
        assert await two.rwlock("book").read().try_acquire() is None


async def test_an_updater_reads_with_readers_but_there_is_one(world: World) -> None:
    one, two, three = world.clients(3)
    async with one.rwlock("book").update():
        async with two.rwlock("book").read():
            assert await three.rwlock("book").update().try_acquire() is None
            assert await three.rwlock("book").write().try_acquire() is None


async def test_a_reader_behind_a_waiting_writer_waits_for_it(world: World) -> None:
    """Later readers do not overtake: the writer is next, then all of them together."""
    one, two = world.clients(2)
    order: list[str] = []

    async def hold(lock: Any, what: str) -> None:
        async with lock:
            order.append(what)

    first = await one.rwlock("book").read().acquire()
    running = await world.queue(
        one,
        "book",
        [
            hold(two.rwlock("book").write(), "writer"),
            hold(one.rwlock("book").read(), "reader"),
            hold(two.rwlock("book").read(), "reader"),
        ],
    )
    assert order == []
    await first.release()
    for job in running:
        await job.result()
    assert order == ["writer", "reader", "reader"]


async def test_tokens_of_readers_differ_and_rise(world: World) -> None:
    one, two = world.clients(2)
    first = await one.rwlock("book").read().acquire()
    second = await two.rwlock("book").read().acquire()
    assert first.token < second.token
    await first.release()
    await second.release()
    async with one.rwlock("book").write() as writer:
        assert writer.token > second.token


async def test_a_writer_enters_within_one_hold_among_32_readers(world: World) -> None:
    """Readers overlap without a gap; the writer waits only for those that hold when it comes."""
    clients = world.clients(4)
    busy = world.flag()
    enough = world.flag()
    granted: deque[int] = deque()

    async def reader(client: Any) -> None:
        while not enough.is_set():
            async with client.rwlock("book").read() as lease:
                granted.append(lease.token)
                if len(granted) > 200:
                    busy.set()
                await world.pass_ms(5)

    readers = [world.start(reader(clients[at % 4])) for at in range(32)]
    await busy.wait()
    client = world.client()
    watch = client.watch("book", after=0)
    asked = time.monotonic()
    lease = await client.rwlock("book").write().acquire()
    waited_s = time.monotonic() - asked
    await lease.release()
    enough.set()
    for job in readers:
        await job.result()
    # By the store's own log: no reader was admitted between the writer's arrival and its grant.
    between: list[str] = []
    arrived = False
    async for event in watch:
        if event.mode == "exclusive" and event.what == "waiting":
            arrived = True
        elif event.mode == "exclusive" and event.what == "granted":
            break
        elif arrived:
            between.append(event.what)
    assert arrived, f"it never had to wait ({waited_s:.3f} s)"
    assert between.count("granted") == 0
    assert between.count("released") <= 32
    assert isinstance(lease.token, int)


async def test_rwlock_in_a_decorator(world: World) -> None:
    client, other = world.clients(2)

    async def read(number: int) -> str:
        holders = (await client.inspect(f"page:{number}")).holders
        assert await other.rwlock(f"page:{number}").write().try_acquire() is None
        return str(holders[0].mode)

    assert await client.rwlock("page:{number}").read()(read)(7) == "shared"


async def test_timeout_of_a_writer_leaves_the_readers_alone(world: World) -> None:
    one, two = world.clients(2)
    async with one.rwlock("book").read() as lease:
        with pytest.raises(lockfast.AcquireTimeoutError) as caught:
            await two.rwlock("book").write().acquire(timeout=0.05)
        assert caught.value.name == "book"
        assert one.owner in caught.value.holders[0]
        await world.until_queued(one, "book", 0)
        await (await two.rwlock("book").read().acquire(timeout=5)).release()
        lease.check()
