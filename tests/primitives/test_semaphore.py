"""Semaphores: permits up to a limit, in order, released by a crash."""

from __future__ import annotations

import threading
from typing import Any

import pytest

import lockfast
from tests.primitives.world import World


async def test_at_most_the_limit(world: World) -> None:
    clients = world.clients(3)
    mutex = threading.Lock()
    inside = 0
    most = 0

    async def work(client: Any) -> None:
        nonlocal inside, most
        for _ in range(5):
            async with client.semaphore("api", 3):
                with mutex:
                    inside += 1
                    most = max(most, inside)
                await world.pass_ms(1)
                with mutex:
                    inside -= 1

    jobs = [world.start(work(clients[at % 3])) for at in range(8)]
    for job in jobs:
        await job.result()
    assert most == 3


async def test_weights_add_up(world: World) -> None:
    one, two = world.clients(2)
    async with await one.semaphore("api", 10).acquire(permits=7) as permit:
        assert permit.permits == 7
        assert await two.semaphore("api", 10).try_acquire(permits=4) is None
        async with await two.semaphore("api", 10).acquire(permits=3, timeout=5):
            assert await one.semaphore("api", 10).try_acquire() is None


@pytest.mark.parametrize("permits", [0, -1, 11])
async def test_what_can_never_be_had_is_refused(world: World, permits: int) -> None:
    client = world.client()
    with pytest.raises(lockfast.LimitError):
        await client.semaphore("api", 10).acquire(permits=permits)


async def test_another_limit_is_a_typed_error(world: World) -> None:
    one, two = world.clients(2)
    async with one.semaphore("api", 10):
        with pytest.raises(lockfast.LimitError) as caught:
            await two.semaphore("api", 5).acquire()
        assert (caught.value.value, caught.value.limit) == (5, 10)
        assert "resize" in str(caught.value)
        with pytest.raises(lockfast.LimitError):
            await two.semaphore("api", 20).try_acquire()
    async with two.semaphore("api", 5):
        assert (await one.inspect("api", kind="semaphore")).limit == 5


async def test_resize_up_lets_in_those_who_wait(world: World) -> None:
    one, two = world.clients(2)
    semaphore = one.semaphore("api", 1)
    async with semaphore:

        async def enter() -> int:
            async with two.semaphore("api", 1):
                return int((await two.inspect("api", kind="semaphore")).holder_count)

        (waiting,) = await world.queue(one, "api", [enter()], "semaphore")
        assert await semaphore.resize(2) is True
        assert await waiting.result() == 2
        assert semaphore.limit == 2
    assert await semaphore.resize(3) is False, "nobody uses it"


async def test_resize_down_takes_nothing_away(world: World) -> None:
    one, two = world.clients(2)
    semaphore = one.semaphore("api", 2)
    first, second = await semaphore.acquire(), await semaphore.acquire()
    await semaphore.resize(1)
    first.check()
    second.check()
    await first.release()
    assert await two.semaphore("api", 1).try_acquire() is None
    await second.release()
    await (await two.semaphore("api", 1).acquire(timeout=5)).release()


async def test_who_wants_more_than_a_lowered_limit_is_told(world: World) -> None:
    one, two, three = world.clients(3)
    semaphore = one.semaphore("api", 4)
    async with semaphore:
        large, small = await world.queue(
            one,
            "api",
            [
                two.semaphore("api", 4).acquire(permits=4),
                three.semaphore("api", 4).acquire(permits=2),
            ],
            "semaphore",
        )
        await semaphore.resize(3)
        with pytest.raises(lockfast.LimitError):
            await large.result()
        # The claim behind it was blocked by it alone.
        await (await small.result()).release()


async def test_a_permit_cannot_fence(world: World) -> None:
    client = world.client()
    async with client.semaphore("api", 2) as permit:
        with pytest.raises(lockfast.UnsupportedError):
            _ = permit.token
        permit.check()
        assert permit.name == "api"


async def test_a_limit_sized_request_among_50_small_ones_is_served_in_its_order(
    world: World,
) -> None:
    """25 requests come before it and 25 after it: it is granted after the former and before the
    latter."""
    client, other = world.clients(2)
    order: list[int] = []
    mutex = threading.Lock()

    async def take(who: Any, permits: int) -> None:
        async with await who.semaphore("api", 8).acquire(permits=permits):
            with mutex:
                order.append(permits)
            await world.pass_ms(2)

    all_of_them = await client.semaphore("api", 8).acquire(permits=8)
    jobs = [take(client if at % 2 else other, 8 if at == 25 else 1) for at in range(51)]
    running = await world.queue(client, "api", jobs, "semaphore")
    await all_of_them.release()
    for job in running:
        await job.result()
    assert order == [1] * 25 + [8] + [1] * 25


async def test_a_closed_client_gives_its_permits_back(world: World) -> None:
    one, two = world.clients(2)
    permit = await one.semaphore("api", 3).acquire(permits=3)
    waiting = world.start(two.semaphore("api", 3).acquire(permits=2))
    await world.until_queued(two, "api", 1, "semaphore")
    await one.close()
    await (await waiting.result()).release()
    assert permit.lost.is_set()


async def test_asking_for_more_than_one_leaves_oneself_is_told_at_once(world: World) -> None:
    client = world.client(deadlock_after=60)
    async with await client.semaphore("api", 3).acquire(permits=2):
        async with client.semaphore("api", 3):
            with pytest.raises(lockfast.DeadlockError):
                await client.semaphore("api", 3).acquire()


async def test_a_timeout_gives_the_place_back(world: World) -> None:
    one, two = world.clients(2)
    async with one.semaphore("api", 2):
        with pytest.raises(lockfast.AcquireTimeoutError):
            await two.semaphore("api", 2).acquire(permits=2, timeout=0.05)
        await (await two.semaphore("api", 2).acquire(timeout=10)).release()
