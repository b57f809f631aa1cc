"""Retained locks: kept after release without requests until other clients want them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import lockfast
from lockfast import LeaseState
from lockfast.core.commands import WAKE_WANTED
from lockfast.flow import retained
from tests.primitives.world import Counter, World, core_of


async def test_taken_again_without_a_store_operation(world: World) -> None:
    """The first acquire sends a request, a thousand later ones send none."""
    client = world.client()
    counter = Counter(client)
    lock = client.lock("a", retain=True)
    tokens = []
    for _ in range(1000):
        async with lock as lease:
            tokens.append(lease.token)
    assert counter.names() == ["Enter"]
    assert tokens == sorted(set(tokens)), "a new, higher token each time"


async def test_tokens_go_on_rising_beyond_a_block(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retained, "BLOCK", 8)
    client, other = world.clients(2)
    lock = client.lock("a", retain=True)
    tokens = []
    for _ in range(30):
        async with lock as lease:
            tokens.append(lease.token)
    async with other.lock("b") as later:
        tokens.append(later.token)
    assert tokens == sorted(set(tokens))


async def test_another_client_gets_it_as_soon_as_the_local_user_is_done(world: World) -> None:
    client, other = world.clients(2)
    lock = client.lock("a", retain=True)
    lease = await lock.acquire()
    (waiting,) = await world.queue(client, "a", [other.lock("a").acquire()])
    lease.check()
    assert not waiting.is_done()
    await lease.release()
    theirs = await waiting.result()
    assert theirs.token > lease.token
    await theirs.release()
    async with lock as again:
        assert again.token > theirs.token


async def test_an_idle_one_is_given_up_at_once(world: World) -> None:
    client, other = world.clients(2)
    async with client.lock("a", retain=True) as lease:
        pass
    assert (await other.inspect("a")).holder_count == 1
    async with await other.lock("a").acquire(timeout=10) as theirs:
        assert theirs.token > lease.token


async def test_try_acquire_of_others_does_not_take_it(world: World) -> None:
    """A try is never queued, so the retaining client is not notified."""
    client, other = world.clients(2)
    async with client.lock("a", retain=True):
        pass
    assert await other.lock("a").try_acquire() is None
    await (await other.lock("a").acquire(timeout=10)).release()


async def test_local_users_are_served_in_order_of_arrival(world: World) -> None:
    client = world.client()
    lock = client.lock("a", retain=True)
    order: list[int] = []
    lease = await lock.acquire()

    async def take(at: int) -> None:
        async with lock:
            order.append(at)

    (keep,) = getattr(client, "it", client)._retained_locks.values()
    running = []
    for at in range(20):
        running.append(world.start(take(at)))

        async def in_line(count: int = at + 1) -> bool:
            return len(keep._line) == count

        await world.until(in_line)
    await lease.release()
    for job in running:
        await job.result()
    assert order == list(range(20))


async def test_others_get_their_share_while_it_is_busy(world: World) -> None:
    """Local users follow each other without a pause; another client still gets its turn."""
    client, other = world.clients(2)
    lock = client.lock("a", retain=True)
    enough = world.flag()
    taken: list[int] = []

    async def use() -> None:
        while not enough.is_set():
            async with lock as lease:
                taken.append(lease.token)
                await world.pass_ms(0)

    users = [world.start(use()) for _ in range(4)]
    theirs: list[int] = []

    async def in_use() -> bool:
        return len(taken) > 20

    await world.until(in_use)
    for _ in range(10):
        async with other.lock("a") as lease:
            theirs.append(lease.token)
    before = len(taken)

    async def goes_on() -> bool:
        return len(taken) > before

    await world.until(goes_on)
    enough.set()
    for job in users:
        await job.result()
    assert len(set(taken) | set(theirs)) == len(taken) + len(theirs)
    assert theirs == sorted(theirs)
    assert min(taken) < theirs[-1] < max(taken)


async def test_a_long_local_line_is_interrupted_for_others(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retained, "SERVED_WHILE_WANTED", 3)
    monkeypatch.setattr(retained, "SERVED_MS_WHILE_WANTED", 60_000)
    client, other = world.clients(2)
    lock = client.lock("a", retain=True)
    lease = await lock.acquire()
    tokens: list[int] = []

    async def take() -> None:
        async with lock as mine:
            tokens.append(mine.token)

    (keep,) = getattr(client, "it", client)._retained_locks.values()
    running = [world.start(take()) for _ in range(8)]

    async def all_in_line() -> bool:
        return len(keep._line) == 8

    await world.until(all_in_line)
    (waiting,) = await world.queue(client, "a", [other.lock("a").acquire()])

    async def is_wanted() -> bool:
        return keep._wanted_at_arrival is not None

    await world.until(is_wanted)
    await lease.release()
    async with await waiting.result() as theirs:
        pass
    for job in running:
        await job.result()
    assert sum(token < theirs.token for token in tokens) == 3


async def test_cached_readers_cost_nothing_until_a_writer_comes(world: World) -> None:
    client, other = world.clients(2)
    counter = Counter(client)
    book = client.rwlock("book", retain=True)
    async with book.read() as one, book.read() as two:
        assert one.token < two.token
        async with other.rwlock("book").read():
            pass
    for _ in range(100):
        async with book.read():
            pass
    assert counter.names() == ["Enter"]
    reader = await book.read().acquire()
    (writer,) = await world.queue(client, "book", [other.rwlock("book").write().acquire()])
    # No new reader is admitted before the writer, not even a local one.
    late = world.start(book.read().acquire())
    await reader.release()
    writing = await writer.result()
    assert writing.token > reader.token
    assert not late.is_done()
    await writing.release()
    reading = await late.result()
    assert reading.token > writing.token
    await reading.release()


async def test_a_local_writer_follows_local_cached_readers(world: World) -> None:
    client = world.client()
    book = client.rwlock("book", retain=True)
    reader = await book.read().acquire()
    (writer,) = await world.queue(client, "book", [book.write().acquire()])
    await reader.release()
    writing = await writer.result()
    assert writing.token > reader.token
    await writing.release()


async def test_a_loss_is_the_local_users_loss(world: World) -> None:
    client, admin = world.clients(2)
    lock = client.lock("a", retain=True)
    lease = await lock.acquire()
    assert await admin.revoke("a", reason="enough") == 1
    assert await lease.lost.wait(30)
    assert lease.state is LeaseState.LOST
    with pytest.raises(lockfast.LeaseLostError, match="enough"):
        lease.check()
    with pytest.raises(lockfast.LeaseLostError):
        await lease.release()
    async with lock as again:
        assert again.token > lease.token


async def test_the_deadline_is_the_sessions(world: World) -> None:
    client = world.client(ttl=20)
    lock = client.lock("a", retain=True)
    async with lock:
        pass
    async with lock as lease:
        assert 0 < lease.remaining <= 20
        (session,) = core_of(client).sessions()
        assert lease.deadline == session.snapshot.deadline_ms / 1000
        session.end("it was not renewed in time")
        assert lease.lost.is_set()
        assert lease.remaining == 0.0
        with pytest.raises(lockfast.LeaseLostError):
            lease.check()
        # The block ends with the loss, as for every other lease.
        with pytest.raises(lockfast.LeaseLostError):
            await lease.release()
        lease = await lock.acquire()
    await lease.release()


async def test_max_hold_ends_a_kept_lock_too(world: World) -> None:
    client, other = world.clients(2)
    lease = await client.lock("a", retain=True, max_hold=0.1).acquire()
    assert await lease.lost.wait(30)
    await (await other.lock("a").acquire(timeout=10)).release()
    with pytest.raises(lockfast.LeaseLostError):
        await lease.release()


async def test_released_twice_is_harmless(world: World) -> None:
    client = world.client()
    lock = client.lock("a", retain=True)
    lease = await lock.acquire()
    await lease.release()
    await lease.release()
    assert lease.state is LeaseState.RELEASED
    async with lock:
        await lease.release()
        assert await lock.try_acquire() is None


async def test_a_timeout_or_cancellation_in_the_local_line(world: World) -> None:
    client = world.client()
    lock = client.lock("a", retain=True)
    lease = await lock.acquire()
    (keep,) = getattr(client, "it", client)._retained_locks.values()

    async def wait_shortly() -> str:
        with pytest.raises(lockfast.AcquireTimeoutError):
            await lock.acquire(timeout=0.03)
        return "timed out"

    assert await world.start(wait_shortly()).result() == "timed out"
    await lease.release()
    async with lock:
        pass
    assert not keep._line


async def test_a_timeout_in_the_local_line_names_its_length_and_the_user_here(world: World) -> None:
    client = world.client()
    lock = client.lock("a", retain=True)
    lease = await lock.acquire()
    with pytest.raises(lockfast.AcquireTimeoutError) as refused:
        await lock.acquire(timeout=0)
    assert refused.value.timeout == 0
    (holder,) = refused.value.holders
    assert holder.endswith(f"(token {lease.token}, here)")
    await lease.release()


async def test_a_lost_wake_is_made_good_by_the_keep_alive(world: World) -> None:
    """The datagram WAKE_WANTED is dropped: the keep-alive delivers it a third of the TTL later."""
    client, other = world.clients(2, ttl=0.6)
    async with client.lock("a", retain=True) as lease:
        pass
    dropped = drop_wanted(core_of(client))
    async with await other.lock("a").acquire(timeout=30) as theirs:
        assert theirs.token > lease.token
    assert dropped, "it was given up for another reason than the keep-alive"


def drop_wanted(core: Any) -> list[Any]:
    """Prevent a client from receiving the wakes that its locks are wanted."""
    dropped: list[Any] = []
    (session,) = core.sessions()
    listener = session.listener
    table = getattr(listener, "_source", None)
    listeners = table._listeners if table is not None else core.store._file._listeners
    deliver = listeners[listener.inbox]

    def hear(wake: Any) -> None:
        if wake.what == WAKE_WANTED:
            dropped.append(wake)
        else:
            deliver(wake)

    listeners[listener.inbox] = hear
    return dropped


async def test_closing_gives_it_back(world: World) -> None:
    client, other = world.clients(2)
    async with client.lock("a", retain=True):
        pass
    await client.close()
    async with await other.lock("a").acquire(timeout=0):
        pass


async def test_a_dropped_lease_goes_back_to_the_local_line(world: World) -> None:
    """Garbage-collected without a release: a warning is issued, and the next user gets the lock."""
    client = world.client()
    lock = client.lock("a", retain=True)
    holder = [await lock.acquire()]
    with pytest.warns(ResourceWarning, match="never released"):
        holder.clear()
    await (await lock.acquire(timeout=30)).release()


def test_sixty_four_tasks_of_one_client_in_order() -> None:
    """Each is served equally often, and none twice in a row."""

    async def story() -> None:
        async with lockfast.aio.connect("memory://sixty-four") as client:
            counter = Counter(client)
            lock = client.lock("a", retain=True)
            order: list[int] = []

            async def use(at: int) -> None:
                for _ in range(20):
                    async with lock:
                        order.append(at)
                        await asyncio.sleep(0)

            await asyncio.gather(*(use(at) for at in range(64)))
            assert counter.names() == ["Enter"]
            for turn in range(20):
                assert sorted(order[turn * 64 : turn * 64 + 64]) == list(range(64))

    asyncio.run(story())
