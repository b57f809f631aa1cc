"""Upgrade and downgrade: the granted mode stays until the new one is granted."""

from __future__ import annotations

from typing import Any

import pytest

import lockfast
from lockfast import LeaseState
from tests.primitives.world import World


async def modes(client: Any, name: str = "book") -> list[str]:
    return sorted(claim.mode for claim in (await client.inspect(name)).holders)


async def events_until(watch: Any, what: str) -> list[str]:
    seen = []
    async for event in watch:
        seen.append(event.what)
        if event.what == what:
            return seen
    raise AssertionError(seen)


async def test_an_updater_becomes_the_writer_when_the_readers_have_left(world: World) -> None:
    one, two = world.clients(2)
    watch = one.watch("book", after=0)
    reader = await two.rwlock("book").read().acquire()
    lease = await one.rwlock("book").update().acquire()
    before = lease.token
    upgrade = world.start(lease.upgrade())
    await events_until(watch, "converting")
    assert await modes(one) == ["shared", "update"], "it keeps what it has while it waits"
    assert await two.rwlock("book").read().try_acquire() is None, "no new reader is let in"
    await reader.release()
    await upgrade.result()
    assert await modes(one) == ["exclusive"]
    assert lease.token > before, "a writer has a token of its own"
    assert (await events_until(watch, "converted"))[-1] == "converted"
    await lease.release()


async def test_an_upgrade_goes_before_all_who_wait(world: World) -> None:
    one, two, three = world.clients(3)
    reader = await two.rwlock("book").read().acquire()
    lease = await one.rwlock("book").update().acquire()
    order: list[str] = []

    async def write() -> None:
        async with three.lock("book"):
            order.append("writer")

    async def upgrade() -> None:
        await lease.upgrade()
        order.append("upgraded")

    (writer,) = await world.queue(one, "book", [write()])
    watch = one.watch("book", after=0)
    upgrading = world.start(upgrade())
    await events_until(watch, "converting")
    await reader.release()
    await upgrading.result()
    await lease.release()
    await writer.result()
    assert order == ["upgraded", "writer"]


async def test_a_downgrade_keeps_the_token_and_lets_readers_in(world: World) -> None:
    one, two = world.clients(2)
    lease = await one.rwlock("book").write().acquire()
    token = lease.token

    async def read() -> str:
        async with two.rwlock("book").read():
            return "read"

    (reader,) = await world.queue(one, "book", [read()])
    await lease.downgrade()
    assert await reader.result() == "read"
    assert lease.token == token
    lease.check()
    await lease.release()


async def test_a_timed_out_upgrade_keeps_the_granted_mode(world: World) -> None:
    one, two = world.clients(2)
    async with two.rwlock("book").read():
        lease = await one.rwlock("book").update().acquire()
        token = lease.token
        with pytest.raises(lockfast.AcquireTimeoutError):
            await lease.upgrade(timeout=0.05)
        lease.check()
        assert lease.token == token
        # The queue is open again: nothing of the attempt is left.
        await (await two.rwlock("book").read().acquire(timeout=10)).release()
        assert await modes(one) == ["shared", "update"]
    await lease.upgrade(timeout=10)
    assert await modes(one) == ["exclusive"]
    await lease.release()


async def test_upgrade_at_once_or_not_at_all(world: World) -> None:
    one, two = world.clients(2)
    lease = await one.rwlock("book").update().acquire()
    async with two.rwlock("book").read():
        with pytest.raises(lockfast.AcquireTimeoutError):
            await lease.upgrade(timeout=0)
        await (await two.rwlock("book").read().acquire(timeout=10)).release()
    await lease.upgrade(timeout=0)
    await lease.release()


async def test_a_cancelled_upgrade_leaves_nothing(world: World) -> None:
    """After Ctrl-C or a cancellation the lease is shared as before, and others are admitted."""
    one, two = world.clients(2)
    reader = await two.rwlock("book").read().acquire()
    lease = await one.rwlock("book").update().acquire()
    watch = one.watch("book", after=0)
    await world.interrupt(lease.upgrade(), lambda: events_until(watch, "converting"))
    await (await two.rwlock("book").read().acquire(timeout=10)).release()
    await reader.release()
    await (await two.rwlock("book").read().acquire(timeout=10)).release()
    assert lease.state is LeaseState.HELD
    assert await modes(one) == ["update"]
    await lease.upgrade(timeout=10)
    await lease.release()


async def test_two_readers_who_upgrade_are_told_at_once(world: World) -> None:
    """Each would wait for the other to leave: the second is refused, the first continues."""
    one, two = world.clients(2, deadlock_after=30)
    mine = await one.rwlock("book").read().acquire()
    theirs = await two.rwlock("book").read().acquire()
    watch = one.watch("book", after=0)
    upgrade = world.start(mine.upgrade())
    await events_until(watch, "converting")
    with pytest.raises(lockfast.DeadlockError) as caught:
        await theirs.upgrade()
    assert one.owner in str(caught.value)
    theirs.check()
    await theirs.release()
    await upgrade.result()
    await mine.release()


async def test_a_reader_cannot_upgrade_past_an_updater(world: World) -> None:
    one, two = world.clients(2)
    async with one.rwlock("book").update():
        async with two.rwlock("book").read() as reader:
            with pytest.raises(lockfast.DeadlockError):
                await reader.upgrade()


async def test_an_updater_is_never_refused(world: World) -> None:
    """Even if a reader tried to upgrade first: that reader is refused instead."""
    one, two = world.clients(2)
    reader = await two.rwlock("book").read().acquire()
    updater = await one.rwlock("book").update().acquire()
    with pytest.raises(lockfast.DeadlockError):
        await reader.upgrade()
    upgrade = world.start(updater.upgrade())
    await reader.release()
    await upgrade.result()
    await updater.release()


async def test_a_lone_reader_becomes_the_writer_at_once(world: World) -> None:
    client = world.client()
    lease = await client.rwlock("book").read().acquire()
    before = lease.token
    await lease.upgrade(timeout=0)
    assert lease.token > before
    await lease.downgrade()
    assert await modes(client) == ["shared"]
    await lease.release()


async def test_what_has_no_modes_cannot_be_converted(world: World) -> None:
    client = world.client()
    async with client.tree("a/b").read() as tree:
        with pytest.raises(lockfast.UnsupportedError):
            await tree.upgrade()
    async with client.all("a", "b") as several:
        with pytest.raises(lockfast.UnsupportedError):
            await several.downgrade()
    async with client.semaphore("s", 2) as permit:
        with pytest.raises(lockfast.UnsupportedError):
            await permit.upgrade()
    async with client.lock("kept", retain=True) as kept:
        with pytest.raises(lockfast.UnsupportedError):
            await kept.downgrade()


async def test_a_revoked_upgrade_is_a_loss(world: World) -> None:
    one, two, admin = world.clients(3)
    async with two.rwlock("book").read():
        lease = await one.rwlock("book").update().acquire()
        watch = one.watch("book", after=0)
        upgrade = world.start(lease.upgrade())
        await events_until(watch, "converting")
        assert await admin.revoke(session=lease.session, reason="enough") == 1
        with pytest.raises(lockfast.LeaseLostError):
            await upgrade.result()
        assert lease.state is LeaseState.LOST
