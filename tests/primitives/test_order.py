"""Priorities, ageing and re-entry."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import lockfast
from tests.primitives.world import World


def taker(world: World, order: list[str]) -> Any:
    async def take(lock: Any, who: str) -> None:
        async with lock:
            order.append(who)

    return take


async def test_a_priority_is_a_head_start(world: World) -> None:
    one, two = world.clients(2)
    order: list[str] = []
    take = taker(world, order)
    async with one.lock("a"):
        running = await world.queue(
            one,
            "a",
            [
                take(two.lock("a"), "plain"),
                take(two.lock("a", priority=-1), "patient"),
                take(one.lock("a", priority=5), "urgent"),
                take(two.lock("a", priority=5), "urgent too"),
            ],
        )
        waiting = (await one.inspect("a")).waiting
        assert [claim.priority for claim in waiting] == [5, 5, 0, -1]
    for job in running:
        await job.result()
    assert order == ["urgent", "urgent too", "plain", "patient"]


async def test_who_has_waited_longer_than_the_head_start_goes_first(world: World) -> None:
    """No claim starves: one step of priority is worth `ageing_step` seconds."""
    one, two = world.clients(2, ageing_step=0.05)
    order: list[str] = []
    take = taker(world, order)
    async with one.lock("a"):
        running = await world.queue(one, "a", [take(two.lock("a"), "old")])
        await world.until_seen(one, "a", lambda info: info.waiting[0].seconds > 0.11)
        running += await world.queue(one, "a", [take(one.lock("a", priority=2), "urgent")])
        await world.until_queued(one, "a", 2)
    for job in running:
        await job.result()
    assert order == ["old", "urgent"]


async def test_a_step_is_ten_seconds_unless_told_otherwise(world: World) -> None:
    """An urgent claim passes one that has waited less than that."""
    one, two = world.clients(2)
    order: list[str] = []
    take = taker(world, order)
    async with one.lock("a"):
        running = await world.queue(one, "a", [take(two.lock("a"), "old")])
        await world.until_seen(one, "a", lambda info: info.waiting[0].seconds > 0.2)
        running += await world.queue(one, "a", [take(one.lock("a", priority=1), "urgent")])
    for job in running:
        await job.result()
    assert order == ["urgent", "old"]


async def test_a_holder_is_never_displaced(world: World) -> None:
    one, two = world.clients(2)
    async with one.lock("a", priority=-1000) as lease:
        assert await two.lock("a", priority=1000).try_acquire() is None
        lease.check()


@pytest.mark.parametrize("priority", [1001, -1001])
async def test_priorities_are_bounded(world: World, priority: int) -> None:
    with pytest.raises(ValueError, match="priority"):
        world.client().lock("a", priority=priority)


async def test_priorities_of_every_primitive(world: World) -> None:
    one, two = world.clients(2)
    ways: list[tuple[str, Callable[[Any, int], Any]]] = [
        ("lock", lambda c, p: c.rwlock("x", priority=p).write()),
        ("tree", lambda c, p: c.tree("x", priority=p).write()),
        ("semaphore", lambda c, p: c.semaphore("x", 1, priority=p)),
        ("election", lambda c, p: c.election("x", priority=p)),
        ("lock", lambda c, p: c.all("x", "y", priority=p)),
    ]
    for kind, make in ways:
        order: list[str] = []
        take = taker(world, order)
        async with make(one, 0):
            running = await world.queue(
                one, "x", [take(make(two, 0), "plain"), take(make(two, 1), "urgent")], kind
            )
        for job in running:
            await job.result()
        assert order == ["urgent", "plain"]


# ── re-entry ─────────────────────────────────────────────────────────────────────────


async def test_re_entry_has_the_same_token_and_ends_with_the_outermost_exit(
    world: World,
) -> None:
    one, two = world.clients(2)
    lock = one.lock("a", reentrant=True)
    async with lock as outer:
        async with lock as inner, one.lock("a", reentrant=True) as another:
            assert outer.token == inner.token == another.token
        assert await two.lock("a").try_acquire() is None
        again = await lock.acquire()
        await again.release()
        outer.check()
    await (await two.lock("a").acquire(timeout=10)).release()
    async with lock as later:
        assert later.token > outer.token


async def test_re_entry_is_opt_in(world: World) -> None:
    client = world.client(deadlock_after=60)
    async with client.lock("a") as lease:
        with pytest.raises(lockfast.DeadlockError) as caught:
            await client.lock("a").acquire()
        assert str(lease.token) in str(caught.value)
        assert "reentrant" in str(caught.value)
        assert await client.lock("a").try_acquire() is None
        with pytest.raises(lockfast.AcquireTimeoutError):
            await client.lock("a").acquire(timeout=0.01)


async def test_re_entry_is_for_the_same_actor_only(world: World) -> None:
    client = world.client()
    lock = client.lock("a", reentrant=True)
    async with lock as outer:

        async def other() -> int:
            async with lock as lease:
                return int(lease.token)

        (waiting,) = await world.queue(client, "a", [other()])
    assert await waiting.result() > outer.token


async def test_a_kept_lock_may_be_re_entered(world: World) -> None:
    client, other = world.clients(2)
    lock = client.lock("a", reentrant=True, retain=True)
    async with lock as outer, lock as inner:
        assert outer.token == inner.token
    async with lock as later:
        assert later.token > outer.token
    await (await other.lock("a").acquire(timeout=10)).release()
