"""Several at once: a claim holds nothing until it holds everything."""

from __future__ import annotations

from typing import Any

import pytest

import lockfast
from tests.primitives.world import World


async def holders(client: Any, name: str, kind: str = "lock") -> int:
    return int((await client.inspect(name, kind=kind)).holder_count)


async def test_all_or_nothing(world: World) -> None:
    one, two = world.clients(2)
    async with one.lock("b"):
        assert await two.all("a", "b").try_acquire() is None
        assert await holders(one, "a") == 0
    async with two.all("a", "b") as lease:
        assert await one.lock("a").try_acquire() is None
        assert await one.lock("b").try_acquire() is None
        tokens = {(await two.inspect(name)).holders[0].token for name in "ab"}
        assert tokens == {lease.token}, "one token for all"
        assert lease.name == "a, b"


async def test_one_token_greater_than_the_last_of_each(world: World) -> None:
    one, two = world.clients(2)
    async with one.lock("a") as first:
        pass
    async with one.lock("b") as second:
        pass
    async with two.all("a", "b") as both:
        assert both.token > max(first.token, second.token)
    async with one.lock("a") as later:
        assert later.token > both.token


async def test_a_timeout_leaves_no_place_behind(world: World) -> None:
    one, two, three = world.clients(3)
    async with one.lock("b"):
        with pytest.raises(lockfast.AcquireTimeoutError):
            await two.all("a", "b", "c").acquire(timeout=0.05)
        for name in "ac":
            await (await three.lock(name).acquire(timeout=10)).release()
        await world.until_queued(one, "b", 0)


async def test_a_cancelled_claim_leaves_no_place_behind(world: World) -> None:
    one, two, three = world.clients(3)
    async with one.lock("b"):
        await world.interrupt(two.all("a", "b").acquire(), lambda: world.until_queued(one, "b", 1))
        await (await three.lock("a").acquire(timeout=10)).release()
        await world.until_queued(one, "b", 0)


async def test_mixed_modes_and_kinds(world: World) -> None:
    one, two = world.clients(2)
    mixed = one.all("plain", one.rwlock("book").read(), one.tree("shop/eu").write())
    async with mixed:
        async with two.rwlock("book").read():
            pass
        assert await two.rwlock("book").write().try_acquire() is None
        assert await two.lock("plain").try_acquire() is None
        assert await two.tree("shop").read().try_acquire() is None
        async with two.tree("shop/us").write():
            pass


async def test_what_is_asked_for_twice_is_joined(world: World) -> None:
    """Reading the whole and writing below it needs the whole exclusively."""
    client = world.client()
    async with client.all("a", "a", client.rwlock("a").read()):
        assert [claim.mode for claim in (await client.inspect("a")).holders] == ["exclusive"]
    async with client.all(client.tree("t").read(), client.tree("t/x").write()):
        modes = {info.name: info.holders[0].mode for info in await client.list(kind="tree")}
        assert modes == {"t": "exclusive", "t/x": "exclusive"}


async def test_nothing_at_all_is_an_error(world: World) -> None:
    with pytest.raises(TypeError):
        world.client().all()


async def test_crossing_orders_never_deadlock(world: World) -> None:
    """Names in any order, with priorities: no DeadlockError, and every claim is served."""
    clients = world.clients(3, deadlock_after=0.02)
    names = ["a", "b", "c", "d"]
    inside: dict[str, int] = dict.fromkeys(names, 0)

    async def rounds(at: int) -> int:
        for turn in range(12):
            mine = [names[(at + turn) % 4], names[(at + turn * 2 + 1) % 4], names[turn % 4]]
            if at % 2:
                mine.reverse()
            both = clients[at % 3].all(*mine, priority=at - 3)
            async with both:
                for name in set(mine):
                    inside[name] += 1
                    assert inside[name] == 1
                await world.pass_ms(1)
                for name in set(mine):
                    inside[name] -= 1
        return 12

    jobs = [world.start(rounds(at)) for at in range(6)]
    assert sum([await job.result() for job in jobs]) == 72
    for name in names:
        info = await clients[0].inspect(name)
        assert (info.holder_count, info.waiting_count) == (0, 0)


async def test_a_nested_lock_passes_a_reservation_before_anybody_is_a_victim(
    world: World,
) -> None:
    """One holds a and wants b; another wants both and has b reserved.

    Neither is refused: the one that holds goes first.
    """
    one, two = world.clients(2, deadlock_after=0.1)
    order: list[str] = []
    outer = await one.lock("a").acquire()

    async def both() -> None:
        async with two.all("a", "b"):
            order.append("both")

    (waiting,) = await world.queue(one, "a", [both()])
    assert await one.lock("b").try_acquire() is None, "it is reserved"

    async with one.lock("b"):
        order.append("nested")
    await outer.release()
    await waiting.result()
    assert order == ["nested", "both"]


async def test_many_nested_against_many_reservations(world: World) -> None:
    clients = world.clients(3, deadlock_after=0.05)
    done: list[str] = []

    async def nested(client: Any) -> None:
        for _ in range(3):
            async with client.lock("a"), client.lock("b"), client.lock("c"):
                await world.pass_ms(1)
        done.append("nested")

    async def several(client: Any) -> None:
        for _ in range(3):
            async with client.all("c", "a", "b"):
                await world.pass_ms(1)
        done.append("several")

    jobs = [world.start(nested(client)) for client in clients]
    jobs += [world.start(several(client)) for client in clients]
    for job in jobs:
        await job.result()
    assert sorted(done) == ["nested"] * 3 + ["several"] * 3
