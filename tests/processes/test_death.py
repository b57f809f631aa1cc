"""The kernel reports a killed process: its lock is handed over at once, not after the TTL."""

from __future__ import annotations

import asyncio

import pytest

import lockfast.aio
from tests.measuring import Measured
from tests.processes import roles
from tests.processes.crew import Child, Crew, now_ms

NAME = "orders/42"

SOON_S = 8.0
"""Far below the TTL of 30 s, and below its third, when a keep-alive would also notice."""


def takes_over(child: Child) -> tuple[int, float]:
    """Return token and instant of a lease that must come soon."""
    token, at_ms = child.hears("held", SOON_S)
    return int(token), float(at_ms)


def test_waiter_gets_the_lock_of_a_killed_holder(crew: Crew, measured: Measured) -> None:
    """After kill -9 of the holder the waiter gets the lock, with a higher token."""
    holder = crew.start(roles.hold, NAME)
    old_token = int(holder.hears("held")[0])
    waiter = crew.start(roles.hold, NAME)
    crew.await_waiting(NAME, 1)

    killed_ms = now_ms()
    holder.kill()

    token, held_ms = takes_over(waiter)
    assert token > old_token
    measured("from kill -9 to the waiter's lease", held_ms - killed_ms)


@pytest.mark.parametrize("how", ["os.fork", "multiprocessing", "subprocess"])
def test_children_that_live_on_keep_nothing(crew: Crew, measured: Measured, how: str) -> None:
    """The children of a killed holder live on and hold none of its locks."""
    holder = crew.start(roles.hold_and_fork, NAME, how)
    holder.hears("held")
    waiter = crew.start(roles.hold, NAME)
    crew.await_waiting(NAME, 1)

    killed_ms = now_ms()
    holder.kill()

    _, held_ms = takes_over(waiter)
    measured(f"the same, with a child by {how} living on", held_ms - killed_ms)


def test_late_comer_finds_the_holder_dead(crew: Crew) -> None:
    """No claim waited when the holder was killed; the next one does not wait either."""
    holder = crew.start(roles.hold, NAME)
    holder.hears("held")
    holder.kill()

    takes_over(crew.start(roles.hold, NAME))


def test_who_does_not_wait_finds_the_holder_dead_too(crew: Crew) -> None:
    """A killed job does not block the next one for a whole TTL."""
    holder = crew.start(roles.hold, NAME)
    old_token = int(holder.hears("held")[0])
    client = crew.client()
    lock = client.lock(NAME)
    assert lock.try_acquire() is None

    holder.kill()

    lease = lock.try_acquire()
    assert lease is not None
    assert lease.token > old_token
    lease.release()


def test_so_does_a_task(crew: Crew) -> None:
    holder = crew.start(roles.hold, NAME)
    holder.hears("held")

    async def try_before_and_after() -> tuple[bool, bool]:
        async with lockfast.aio.connect(crew.url) as client:
            lock = client.lock(NAME)
            before = await lock.try_acquire()
            holder.kill()
            after = await lock.try_acquire()
            if after is not None:
                await after.release()
            return before is not None, after is not None

    assert asyncio.run(try_before_and_after()) == (False, True)


def test_holder_and_first_waiter_killed_together(crew: Crew, measured: Measured) -> None:
    """Each waiter watches the claim before it, so two deaths at once cost no more than one."""
    holder = crew.start(roles.hold, NAME)
    holder.hears("held")
    first = crew.start(roles.hold, NAME)
    crew.await_waiting(NAME, 1)
    second = crew.start(roles.hold, NAME)
    crew.await_waiting(NAME, 2)

    killed_ms = now_ms()
    holder.kill()
    first.kill()

    _, held_ms = takes_over(second)
    measured("from two kills to the second waiter's lease", held_ms - killed_ms)


def test_waiter_killed_in_the_middle_of_the_line(crew: Crew) -> None:
    """A dead waiter delays no other, and the queue closes over its place."""
    holder = crew.start(roles.hold, NAME)
    holder.hears("held")
    line = []
    for count in (1, 2, 3):
        line.append(crew.start(roles.hold, NAME))
        crew.await_waiting(NAME, count)
    first, middle, last = line

    middle.kill()
    crew.await_waiting(NAME, 2)
    first.kill()
    crew.await_waiting(NAME, 1)

    holder.kill()
    takes_over(last)


def test_waiter_before_us_gave_up(crew: Crew) -> None:
    """The claim before ours left by its timeout: now ours watches the holder."""
    holder = crew.start(roles.hold, NAME)
    holder.hears("held")
    before = crew.start(roles.give_up, NAME)
    crew.await_waiting(NAME, 1)
    waiter = crew.start(roles.hold, NAME)
    before.hears("gave-up")
    crew.await_waiting(NAME, 1)

    holder.kill()

    takes_over(waiter)


def test_somebody_urgent_came_between(crew: Crew) -> None:
    """A claim of higher priority enters before ours and is killed: ours watches both in turn."""
    holder = crew.start(roles.hold, NAME)
    holder.hears("held")
    waiter = crew.start(roles.hold, NAME)
    crew.await_waiting(NAME, 1)
    urgent = crew.start(roles.hold, NAME, priority=5)
    crew.await_waiting(NAME, 2)

    holder.kill()
    takes_over(urgent)
    urgent.kill()

    takes_over(waiter)


def test_somebody_urgent_came_between_and_was_killed_waiting(crew: Crew) -> None:
    holder = crew.start(roles.hold, NAME)
    holder.hears("held")
    waiter = crew.start(roles.hold, NAME)
    crew.await_waiting(NAME, 1)
    urgent = crew.start(roles.hold, NAME, priority=5)
    crew.await_waiting(NAME, 2)

    urgent.kill()
    crew.await_waiting(NAME, 1)
    holder.kill()

    takes_over(waiter)


def test_all_readers_killed(crew: Crew) -> None:
    """A writer watches every reader it waits for."""
    readers = [crew.start(roles.read, NAME) for _ in range(3)]
    for reader in readers:
        reader.hears("reading")
    writer = crew.start(roles.hold, NAME)
    crew.await_waiting(NAME, 1)

    for reader in readers:
        reader.kill()

    takes_over(writer)


def test_one_reader_killed_and_one_done(crew: Crew) -> None:
    killed, done = crew.start(roles.read, NAME), crew.start(roles.read, NAME)
    killed.hears("reading")
    done.hears("reading")
    writer = crew.start(roles.hold, NAME)
    crew.await_waiting(NAME, 1)

    killed.kill()
    done.tell("enough")

    takes_over(writer)


def test_more_readers_killed_than_are_watched(crew: Crew) -> None:
    """The first waiter is told of 16 holders; when they are dead, of the others."""
    readers = crew.start(roles.read, NAME, sessions=40)
    readers.hears("reading")
    writer = crew.start(roles.hold, NAME)
    crew.await_waiting(NAME, 1)

    readers.kill()

    takes_over(writer)
