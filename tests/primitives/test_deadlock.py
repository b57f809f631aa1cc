"""Deadlocks: exactly one claim of a cycle is refused, and none outside a cycle."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from pathlib import Path
from typing import Any

import pytest

import lockfast
import lockfast.aio
from lockfast.core.commands import Revoke
from lockfast.flow import lock_order
from tests.primitives.world import World, core_of

SOON_S = 0.1


async def try_in_turn(
    world: World,
    pairs: list[tuple[Any, Any]],
    errors: list[lockfast.DeadlockError] | None = None,
) -> list[str]:
    """Actors that each take their first lock, wait for each other, and take their second."""
    holding: list[int] = []

    async def actor(first: Any, second: Any) -> str:
        async with first:
            holding.append(1)

            async def all_hold() -> bool:
                return len(holding) == len(pairs)

            await world.until(all_hold)
            try:
                async with second:
                    return "done"
            except lockfast.DeadlockError as error:
                if errors is not None:
                    errors.append(error)
                return "victim"

    running = [world.start(actor(*pair)) for pair in pairs]
    return [await job.result() for job in running]


async def test_two_who_cross(world: World) -> None:
    one, two = world.clients(2, deadlock_after=SOON_S)
    told = await try_in_turn(
        world, [(one.lock("a"), one.lock("b")), (two.lock("b"), two.lock("a"))]
    )
    assert sorted(told) == ["done", "victim"]


async def test_the_error_names_each_lock_and_who_is_there(world: World) -> None:
    one = world.client(deadlock_after=SOON_S, owner="ada")
    two = world.client(deadlock_after=SOON_S, owner="ben")
    errors: list[lockfast.DeadlockError] = []
    crossing = [(one.lock("a"), one.lock("b")), (two.lock("b"), two.lock("a"))]
    await try_in_turn(world, crossing, errors)
    (error,) = errors
    assert error.name in "ab"
    assert len(error.cycle) == 2
    for word in ("'a'", "'b'", "ada", "ben"):
        assert word in str(error)


async def test_three_way_across_rwlock_semaphore_and_lock(world: World) -> None:
    """lock → read-write lock → semaphore → lock."""
    one, two, three = world.clients(3, deadlock_after=SOON_S)
    told = await try_in_turn(
        world,
        [
            (one.lock("l"), one.rwlock("rw").write()),
            (two.rwlock("rw").read(), two.semaphore("s", 1)),
            (three.semaphore("s", 1), three.lock("l")),
        ],
    )
    assert sorted(told) == ["done", "done", "victim"]


async def test_three_way_across_tree_several_and_election(world: World) -> None:
    one, two, three = world.clients(3, deadlock_after=SOON_S)
    told = await try_in_turn(
        world,
        [
            (one.tree("t/x").write(), one.all("a", "b")),
            (two.all("b", "c"), two.election("e")),
            (three.election("e"), three.tree("t").read()),
        ],
    )
    assert sorted(told) == ["done", "done", "victim"]


async def test_within_one_client(world: World) -> None:
    """Tasks or threads of one client can deadlock like those of two clients."""
    client = world.client(deadlock_after=SOON_S)
    told = await try_in_turn(
        world, [(client.lock("a"), client.lock("b")), (client.lock("b"), client.lock("a"))]
    )
    assert sorted(told) == ["done", "victim"]


async def test_over_two_sessions_of_one_client(world: World) -> None:
    """An actor may hold in one session and wait in another: the graph is over actors."""
    one, two = world.clients(2, deadlock_after=SOON_S)
    told = await try_in_turn(
        world,
        [
            (one.lock("a", ttl=20), one.lock("b", ttl=40)),
            (two.lock("b", ttl=60), two.lock("a", ttl=80)),
        ],
    )
    assert sorted(told) == ["done", "victim"]


async def test_a_semaphore_is_a_deadlock_only_if_its_weights_are(world: World) -> None:
    """Four of five permits are held by others that also wait; two are requested."""
    one, two = world.clients(2, deadlock_after=SOON_S)
    told = await try_in_turn(
        world,
        [
            (one.semaphore("s", 2), one.lock("l")),
            (two.lock("l"), OfPermits(two.semaphore("s", 2), 2)),
        ],
    )
    assert sorted(told) == ["done", "victim"]
    told = await try_in_turn(
        world,
        [
            (one.semaphore("r", 2), one.lock("m")),
            (two.lock("m"), OfPermits(two.semaphore("r", 2), 1)),
        ],
    )
    assert told == ["done", "done"]


class OfPermits:
    """A context manager for several permits of a semaphore."""

    def __init__(self, semaphore: Any, permits: int) -> None:
        self._semaphore = semaphore
        self._permits = permits
        self._permit: Any = None

    async def __aenter__(self) -> None:
        self._permit = await self._semaphore.acquire(permits=self._permits)

    async def __aexit__(self, *_: object) -> None:
        await self._permit.release()


async def test_the_victim_has_the_lowest_priority_then_is_the_youngest(world: World) -> None:
    one, two = world.clients(2, deadlock_after=SOON_S)
    told = await try_in_turn(
        world,
        [
            (one.lock("a"), one.lock("b", priority=3)),
            (two.lock("b"), two.lock("a", priority=2)),
        ],
    )
    assert told == ["done", "victim"]
    outer = await one.lock("x").acquire()
    inner = await two.lock("y").acquire()

    async def cross(lock: Any, mine: Any) -> str:
        await mine.adopt()
        try:
            async with lock:
                return "done"
        except lockfast.DeadlockError:
            return "victim"
        finally:
            await mine.release()

    (older,) = await world.queue(one, "y", [cross(one.lock("y"), outer)])
    await world.until_seen(one, "y", lambda info: info.waiting[0].seconds > 0.5)
    younger = world.start(cross(two.lock("x"), inner))
    assert [await older.result(), await younger.result()] == ["done", "victim"]


async def test_a_reader_who_reads_again_behind_a_waiting_writer(world: World) -> None:
    """The writer waits for the reader, and the reader's second claim is queued behind it."""
    one, two = world.clients(2, deadlock_after=SOON_S)

    async def write() -> str:
        async with two.rwlock("book").write():
            return "written"

    async with one.rwlock("book").read():
        (writer,) = await world.queue(one, "book", [write()])
        with pytest.raises(lockfast.DeadlockError):
            await one.rwlock("book").read().acquire()
    assert await writer.result() == "written"


@pytest.mark.parametrize("priority", [0, -1])
async def test_an_upgrade_in_a_cycle(world: World, priority: int) -> None:
    """One upgrades and waits for a reader, which waits for another lock of the first."""
    one, two = world.clients(2, deadlock_after=SOON_S)
    updater = await one.rwlock("book", priority=priority).update().acquire()
    told: list[str] = []
    errors: list[lockfast.DeadlockError] = []

    async def upgrade() -> None:
        await updater.adopt()
        async with one.lock("other"):
            await world.until_queued(two, "other", 1)
            try:
                await updater.upgrade()
                told.append("done")
            except lockfast.DeadlockError as error:
                errors.append(error)
                told.append("victim")
                updater.check()
        await updater.release()

    async def read() -> None:
        async with two.rwlock("book").read():
            await world.until_seen(two, "other", lambda info: info.holder_count)
            try:
                async with two.lock("other"):
                    told.append("done")
            except lockfast.DeadlockError:
                told.append("victim")

    jobs = [world.start(upgrade()), world.start(read())]
    for job in jobs:
        await job.result()
    assert sorted(told) == ["done", "victim"]
    if priority < 0:
        (error,) = errors
        assert "'book'" in str(error)
        assert "'other'" in str(error)


async def test_deadlocks_are_listed(world: World) -> None:
    """`client.deadlocks()` shows every client the deadlocks that are not resolved yet."""
    one = world.client(deadlock_after=3600, owner="ada")
    two = world.client(deadlock_after=3600, owner="ben")
    admin = world.client()
    a, b = await one.lock("a").acquire(), await two.lock("b").acquire()
    assert await admin.deadlocks() == []

    async def cross(client: Any, name: str, mine: Any) -> None:
        await mine.adopt()
        with pytest.raises(lockfast.LeaseLostError):
            async with client.lock(name):
                pass

    running = [world.start(cross(one, "b", a))]
    await world.until_seen(admin, "b", lambda info: info.waiting and info.waiting[0].seconds > 0.5)
    assert await admin.deadlocks() == []
    running.append(world.start(cross(two, "a", b)))
    await world.until_queued(admin, "a", 1)
    (found,) = await admin.deadlocks()
    assert len(found.actors) == 2
    assert found.victim_owner == "ben", "the youngest claim"
    text = "\n".join(found.lines)
    for word in ("'a'", "'b'", "ada", "ben"):
        assert word in text
    for name in ("a", "b"):
        (waiting,) = (await admin.inspect(name)).waiting
        assert await revoke_claim(admin, waiting) == 1
    for job in running:
        await job.result()
    assert await admin.deadlocks() == []
    await a.release()
    await b.release()


async def revoke_claim(client: Any, claim: Any) -> int:
    command = Revoke(claim.session, claim.n, "admin", "to end the test")
    return int((await core_of(client).request(command)).found)


# ── no false alarm ───────────────────────────────────────────────────────────────────


async def test_crossing_without_a_cycle(world: World) -> None:
    """Two clients each hold and wait, but through different tasks, so no task waits for itself."""
    one, two = world.clients(2, deadlock_after=0.02)
    a, b = await one.lock("a").acquire(), await two.lock("b").acquire()
    # Not the holders: other tasks of the same clients want what the other client holds.
    done: list[str] = []

    async def want(client: Any, name: str) -> None:
        async with client.lock(name):
            done.append(name)

    running = [world.start(want(one, "b")), world.start(want(two, "a"))]
    await world.until_queued(one, "a", 1)
    await world.until_queued(one, "b", 1)
    assert await one.deadlocks() == []
    await world.until_seen(one, "a", lambda info: info.waiting[0].seconds > 0.2)
    assert done == []
    await a.release()
    await b.release()
    for job in running:
        await job.result()
    assert sorted(done) == ["a", "b"]


async def test_a_semaphore_about_to_be_given_back(world: World) -> None:
    """A cycle through two of three permits, while a third holder will release its permit."""
    one, two, three = world.clients(3, deadlock_after=0.02)
    free = await three.semaphore("s", 3).acquire()
    inside: list[int] = []

    async def actor(client: Any, mine: str, theirs: str) -> str:
        async with client.semaphore("s", 3), client.lock(mine):
            inside.append(1)

            async def both() -> bool:
                return len(inside) == 2

            await world.until(both)
            async with client.semaphore("s", 3):
                return "done"

    running = [world.start(actor(one, "a", "b")), world.start(actor(two, "b", "a"))]
    await world.until_queued(one, "s", 2, "semaphore")
    await world.until_seen(one, "s", lambda info: info.waiting[1].seconds > 0.2, "semaphore")
    assert await one.deadlocks() == []
    await free.release()
    assert [await job.result() for job in running] == ["done", "done"]


async def test_a_lease_that_another_task_answers_for(world: World) -> None:
    """A lease acquired here and handed to a worker: after adopt() it belongs to the worker."""
    client = world.client(deadlock_after=0.05)
    lease = await client.lock("a").acquire()
    adopted = world.flag()

    async def worker() -> str:
        await lease.adopt()
        adopted.set()
        await world.until_queued(client, "a", 1)
        await lease.release()
        return "worked"

    running = world.start(worker())
    await adopted.wait()
    # Otherwise this would be refused at once: the same actor would wait for itself.
    await (await client.lock("a").acquire()).release()
    assert await running.result() == "worked"


async def test_adopting_makes_the_cycle_visible(world: World) -> None:
    client = world.client(deadlock_after=60)
    lease = await client.lock("a").acquire()

    async def worker() -> str:
        await lease.adopt()
        with pytest.raises(lockfast.DeadlockError):
            await client.lock("a").acquire()
        await lease.release()
        return "told"

    assert await world.start(worker()).result() == "told"


async def test_what_one_holds_oneself_is_told_at_once(world: World) -> None:
    client = world.client(deadlock_after=60)
    async with client.all("a", "b"):
        with pytest.raises(lockfast.DeadlockError):
            await client.lock("b").acquire()
        with pytest.raises(lockfast.DeadlockError):
            await client.rwlock("a").read().acquire()
    async with client.rwlock("a").read():
        with pytest.raises(lockfast.DeadlockError):
            await client.all("a", "c").acquire()
    async with client.election("e"):
        with pytest.raises(lockfast.DeadlockError):
            await client.election("e").campaign("me")
    async with client.lock("kept", retain=True):
        with pytest.raises(lockfast.DeadlockError):
            await client.lock("kept", retain=True).acquire()
    for name in "abc":
        await world.until_seen(
            client, name, lambda info: (info.holder_count, info.waiting_count) == (0, 0)
        )


# ── the witness ──────────────────────────────────────────────────────────────────────


async def test_the_witness_warns_once_with_both_places(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    client = world.client(debug=True)
    with caplog.at_level(logging.WARNING, "lockfast"):
        async with client.lock("a"), client.lock("b"):
            pass
        assert caplog.records == []
        for _ in range(3):
            async with client.lock("b"), client.lock("a"):
                pass
    (record,) = caplog.records
    message = record.getMessage()
    assert "'a'" in message
    assert "'b'" in message
    # In the blocking API calls go through the wrapper of these tests.
    here = "faces.py:" if world.face == "threads" else "test_deadlock.py:"
    assert message.count(here) == 2


async def test_the_witness_is_silent_about_one_order_and_other_actors(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    client = world.client(debug=True)

    async def take(name: str) -> None:
        async with client.lock(name):
            pass

    with caplog.at_level(logging.WARNING, "lockfast"):
        for _ in range(2):
            async with client.lock("a"), client.lock("b"), client.lock("c"):
                pass
        async with client.lock("c"):
            await world.start(take("a")).result()
        async with client.all("c", "b", "a"):
            pass
    assert caplog.records == []


async def test_no_witness_without_debug(world: World, caplog: pytest.LogCaptureFixture) -> None:
    client = world.client()
    with caplog.at_level(logging.WARNING, "lockfast"):
        async with client.lock("a"), client.lock("b"):
            pass
        async with client.lock("b"), client.lock("a"):
            pass
    assert caplog.records == []


def test_the_memory_of_the_witness_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lock_order, "ORDERS_MAX", 10)
    with lockfast.connect("memory://bounded-witness", debug=True) as client:
        for at in range(50):
            with client.lock(f"a{at}"), client.lock(f"b{at}"):
                pass
        seen = client._core.lock_order
        assert seen is not None
        assert len(seen._orders) == 10


async def all_wait_long(client: lockfast.aio.Client, count: int) -> bool:
    info = await client.inspect("gate")  # it shows the first hundred
    return info.waiting_count == count and info.waiting[-1].seconds > 0.5


@pytest.mark.parametrize(("store", "count"), [("memory", 10_000), ("sqlite", 2_000)])
def test_ten_thousand_tasks_on_one_lock_are_no_deadlock(
    store: str, count: int, quick_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """They wait far longer than `deadlock_after`, and some also hold another lock."""
    url = "memory://ten-thousand" if store == "memory" else f"sqlite://{quick_path}/locks.db"

    async def story() -> int:
        done = 0
        async with lockfast.aio.connect(url, deadlock_after=0.2) as client:
            gate = await client.lock("gate").acquire()

            async def task(at: int) -> None:
                nonlocal done
                async with contextlib.AsyncExitStack() as stack:
                    if at % 500 == 0:
                        await stack.enter_async_context(client.lock(f"own-{at}"))
                    await stack.enter_async_context(client.lock("gate"))
                    done += 1

            tasks = [asyncio.create_task(task(at)) for at in range(count)]
            for _ in range(10_000):
                if await all_wait_long(client, count):
                    break
                await asyncio.sleep(0.01)
            else:
                raise AssertionError("they did not all stand in line")
            assert await client.deadlocks() == []
            await gate.release()
            await asyncio.gather(*tasks)
        return done

    with caplog.at_level(logging.WARNING, "lockfast"):
        assert asyncio.run(story()) == count
    assert caplog.records == []
