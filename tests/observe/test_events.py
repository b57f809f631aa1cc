"""Which events a client emits: the same from both APIs, and in the simulator."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import pytest

import lockfast
import lockfast.aio
from lockfast import events as e
from lockfast.guards import MemoryGuard

T = TypeVar("T")
GUARDS = (e.GuardAdmitted, e.GuardRefused)


class Seen:
    """Events, as an observer received them."""

    def __init__(self) -> None:
        self.events: list[e.Event] = []
        self.subscription: lockfast.Subscription | None = None

    def __call__(self, event: e.Event) -> None:
        self.events.append(event)

    def of(self, kind: type[T]) -> list[T]:
        assert self.subscription is not None
        assert self.subscription.flush()
        return [event for event in self.events if isinstance(event, kind)]

    def names(self) -> list[str]:
        assert self.subscription is not None
        assert self.subscription.flush()
        return [type(event).__name__ for event in self.events]

    def wait_for(self, kind: type[T], count: int = 1) -> list[T]:
        until = time.monotonic() + 30
        while len(found := self.of(kind)) < count:
            assert time.monotonic() < until, self.names()
            time.sleep(0.01)
        return found


@pytest.fixture
def seen() -> Iterator[Seen]:
    seen = Seen()
    with lockfast.observe(seen) as subscription:
        seen.subscription = subscription
        yield seen


@pytest.fixture
def client() -> Iterator[lockfast.Client]:
    with lockfast.connect("memory://", owner="me", ttl=60) as client:
        yield client


def waiter(client: lockfast.Client, name: str) -> threading.Thread:
    def work() -> None:
        client.lock(name).acquire().release()

    thread = threading.Thread(target=work)
    thread.start()
    until = time.monotonic() + 30
    while not client.inspect(name).waiting_count:
        assert time.monotonic() < until
        time.sleep(0.005)
    return thread


def test_an_uncontended_pair(client: lockfast.Client, seen: Seen) -> None:
    with client.lock("orders/42") as lease:
        token = lease.token
    assert seen.names() == ["AcquireBegun", "SessionOpened", "AcquireGranted", "LeaseReleased"]
    (granted,) = seen.of(e.AcquireGranted)
    assert granted.subject[:3] == ("lock", "orders/42", "exclusive")
    assert granted.source == ("memory://", "memory", "me")
    assert granted.token == token
    assert not granted.contended
    assert granted.queue_length == 0
    (released,) = seen.of(e.LeaseReleased)
    assert released.token == token
    assert 0 <= released.hold_us < 30_000_000
    assert released.at_us >= granted.at_us


def test_a_wait_names_position_and_holder(client: lockfast.Client, seen: Seen) -> None:
    with client.lock("a"):
        threads = [waiter(client, "a")]
        seen.wait_for(e.AcquireQueued)
        threads.append(threading.Thread(target=lambda: client.lock("a").acquire().release()))
        threads[1].start()
        queued = seen.wait_for(e.AcquireQueued, 2)
    for thread in threads:
        thread.join()
    assert sorted(event.position or 0 for event in queued) == [1, 2]
    assert {event.holders for event in queued} == {("me",)}
    granted = seen.wait_for(e.AcquireGranted, 3)
    assert sorted((event.contended, event.queue_length) for event in granted) == [
        (False, 0),
        (True, 1),
        (True, 2),
    ]


@pytest.mark.parametrize(
    ("attempt", "why"),
    [
        (lambda client: client.lock("a").acquire(timeout=0.01), e.GAVE_UP_TIMEOUT),
        (lambda client: client.lock("a").try_acquire(), e.GAVE_UP_BUSY),
        (lambda client: client.lock("a").acquire(), e.GAVE_UP_DEADLOCK),
        (lambda client: client.lock("a", retain=True).try_acquire(), e.GAVE_UP_BUSY),
    ],
)
def test_why_an_acquire_gave_up(
    client: lockfast.Client, seen: Seen, attempt: Callable[[lockfast.Client], Any], why: str
) -> None:
    with client.lock("a"):
        try:
            assert attempt(client) is None
        except lockfast.LockfastError:
            pass
    (gave_up,) = seen.of(e.AcquireGaveUp)
    assert gave_up.why == why


def test_a_semaphore_with_another_limit_is_refused(client: lockfast.Client, seen: Seen) -> None:
    with client.semaphore("s", 2), pytest.raises(lockfast.LimitError):
        client.semaphore("s", 3).acquire()
    (gave_up,) = seen.of(e.AcquireGaveUp)
    assert gave_up.why == e.GAVE_UP_REFUSED


def test_a_revoked_lease_says_by_whom(client: lockfast.Client, seen: Seen) -> None:
    lease = client.lock("a").acquire()
    client.revoke("a", reason="stuck")
    assert lease.lost.wait(30)
    (revoked,) = seen.wait_for(e.LeaseRevoked)
    assert revoked.by == "me"
    assert "stuck" in revoked.reason
    (lost,) = seen.wait_for(e.LeaseLost)
    assert lost.why == "revoked"
    assert lost.token == lease.token
    assert not seen.of(e.LeaseReleased)


def test_a_lease_past_its_max_hold_is_lost(client: lockfast.Client, seen: Seen) -> None:
    lease = client.lock("a", max_hold=0.1).acquire()
    assert lease.lost.wait(30)
    (lost,) = seen.wait_for(e.LeaseLost)
    assert lost.why == "max_hold"


def test_a_dropped_lease_is_released(client: lockfast.Client, seen: Seen) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        lease = client.lock("a").acquire()
        del lease
        gc.collect()
    seen.wait_for(e.LeaseReleased)


def test_a_closed_client_releases_and_loses_nothing(seen: Seen) -> None:
    client = lockfast.connect("memory://")
    lease = client.lock("a").acquire()
    client.close()
    seen.wait_for(e.SessionEnded)
    assert len(seen.of(e.LeaseReleased)) == 1
    assert not seen.of(e.LeaseLost)
    assert lease.state is lockfast.LeaseState.LOST


def test_conversions(client: lockfast.Client, seen: Seen) -> None:
    with client.rwlock("a").update() as lease:
        lease.upgrade()
        lease.downgrade()
    up, down = seen.of(e.LeaseConverted)
    assert (up.former_mode, up.subject.mode) == ("update", "exclusive")
    assert up.token > up.former_token
    assert (down.former_mode, down.subject.mode) == ("exclusive", "shared")
    assert down.token == down.former_token == up.token


def test_a_retained_lock_and_its_users(client: lockfast.Client, seen: Seen) -> None:
    lock = client.lock("a", retain=True)
    for _ in range(3):
        with lock:
            pass
    other = lockfast.connect("memory://", owner="other")
    with other.lock("a"):
        pass
    other.close()
    seen.wait_for(e.RetainedReturned)
    assert len(seen.of(e.LockRetained)) == 1
    mine = [each for each in seen.of(e.AcquireGranted) if each.source.owner == "me"]
    assert len(mine) == 3
    assert len({each.token for each in mine}) == 3
    released = [each for each in seen.of(e.LeaseReleased) if each.source.owner == "me"]
    assert [each.token for each in released] == [each.token for each in mine]


def test_a_lost_retained_lock_is_lost_to_its_user(client: lockfast.Client, seen: Seen) -> None:
    lease = client.lock("a", retain=True).acquire()
    client.revoke("a", reason="stuck")
    assert lease.lost.wait(30)
    (lost,) = seen.wait_for(e.LeaseLost)
    assert (lost.token, lost.why) == (lease.token, "revoked")
    with pytest.raises(lockfast.LeaseLostError):
        lease.release()
    assert len(seen.of(e.LeaseLost)) == 1
    assert not seen.of(e.LeaseReleased)


def test_keep_alives(seen: Seen) -> None:
    with lockfast.connect("memory://", ttl=0.3) as client, client.lock("a"):
        renewed = seen.wait_for(e.SessionRenewed, 2)
    assert renewed[0].held == 1
    assert renewed[0].took_us >= 0


def test_a_deadlock(client: lockfast.Client, seen: Seen) -> None:
    with lockfast.connect("memory://", owner="other", deadlock_after=0.1) as other:
        met = threading.Barrier(2)

        def cross(client: lockfast.Client, first: str, second: str) -> None:
            with client.lock(first):
                met.wait(30)
                try:
                    client.lock(second).acquire().release()
                except lockfast.DeadlockError:
                    pass

        threads = [
            threading.Thread(target=cross, args=(client, "a", "b")),
            threading.Thread(target=cross, args=(other, "b", "a")),
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    (found,) = seen.of(e.DeadlockFound)
    assert len(found.lines) == 2
    assert found.victim in ("me", "other")
    (gave_up,) = seen.of(e.AcquireGaveUp)
    assert gave_up.why == e.GAVE_UP_DEADLOCK
    assert gave_up.source.owner == found.victim


def test_guards(seen: Seen) -> None:
    guard = MemoryGuard()
    guard.admit("orders/42", 17)
    with pytest.raises(lockfast.StaleTokenError):
        guard.admit("orders/42", 16)
    (admitted,) = seen.of(e.GuardAdmitted)
    assert admitted[1:] == ("memory", "orders/42", 17)
    (refused,) = seen.of(e.GuardRefused)
    assert refused[1:] == ("memory", "orders/42", 16, 17)


def test_observers_of_one_client_see_no_other(seen: Seen) -> None:
    own: list[e.Event] = []
    with lockfast.connect("memory://", owner="mine", observers=[own.append]) as mine:
        with lockfast.connect("memory://", owner="other") as other, other.lock("b"):
            pass
        with mine.lock("a"):
            pass
    until = time.monotonic() + 30
    while not any(isinstance(event, e.SessionEnded) for event in own):
        assert time.monotonic() < until
        time.sleep(0.01)
    assert {event.source.owner for event in own if not isinstance(event, GUARDS)} == {"mine"}
    assert {each.source.owner for each in seen.of(e.AcquireGranted)} == {"mine", "other"}


def test_a_client_that_exists_already_is_observed_and_then_no_more(
    client: lockfast.Client,
) -> None:
    seen = Seen()
    with lockfast.observe(seen) as subscription:
        seen.subscription = subscription
        with client.lock("a"):
            pass
    count = len(seen.events)
    assert count >= 3
    with client.lock("a"):
        pass
    assert len(seen.events) == count
    assert client._core.emitter.observer is None


def test_a_lease_of_before_is_not_reported_as_released(client: lockfast.Client) -> None:
    seen = Seen()
    with client.lock("a"):
        seen.subscription = lockfast.observe(seen)
    assert seen.names() == []
    seen.subscription.close()


def test_both_faces_emit_the_same(seen: Seen) -> None:
    def shapes() -> list[tuple[str, str]]:
        found = [
            (type(event).__name__, getattr(getattr(event, "subject", None), "mode", ""))
            for event in seen.events
            if not isinstance(event, e.SessionRenewed)
        ]
        seen.events.clear()
        return found

    with lockfast.connect("memory://", ttl=60) as client:
        with client.lock("a"), pytest.raises(lockfast.AcquireTimeoutError):
            client.lock("a").acquire(timeout=0.01)
        with client.rwlock("b").update() as lease:
            lease.upgrade()
        lock = client.lock("c", retain=True)
        with lock:
            pass
        assert client.lock("d").try_acquire().release() is None  # type: ignore[union-attr]
    seen.names()
    blocking = shapes()

    async def story() -> None:
        async with lockfast.aio.connect("memory://", ttl=60) as client:
            async with client.lock("a"):
                with pytest.raises(lockfast.AcquireTimeoutError):
                    await client.lock("a").acquire(timeout=0.01)
            async with client.rwlock("b").update() as lease:
                await lease.upgrade()
            lock = client.lock("c", retain=True)
            async with lock:
                pass
            taken = await client.lock("d").try_acquire()
            assert taken is not None
            await taken.release()

    asyncio.run(story())
    seen.names()
    assert shapes() == blocking
    assert ("LeaseConverted", "exclusive") in blocking


def test_a_cancelled_task_gave_up(seen: Seen) -> None:
    async def story() -> None:
        async with lockfast.aio.connect("memory://") as client, client.lock("a"):
            task = asyncio.create_task(client.lock("a").acquire())
            while not (await client.inspect("a")).waiting_count:
                await asyncio.sleep(0.005)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

    asyncio.run(story())
    (gave_up,) = seen.of(e.AcquireGaveUp)
    assert gave_up.why == e.GAVE_UP_CANCELLED


def test_stats_count_from_the_first_call(client: lockfast.Client) -> None:
    with client.lock("orders/1"):
        pass
    assert client.stats().overall["1m"].acquires == 0
    with client.lock("orders/1"):
        assert client.lock("orders/1").try_acquire() is None
    guard = MemoryGuard()
    guard.admit("x", 2)
    with pytest.raises(lockfast.StaleTokenError):
        guard.admit("x", 1)
    stats = client.stats()
    figures = stats.overall["1m"]
    assert (figures.acquires, figures.granted, figures.timeouts) == (2, 1, 1)
    assert (figures.contended, figures.refused) == (1, 1)
    assert figures.contention_rate == figures.timeout_rate == 0.5
    assert figures.hold.count == figures.acquisition.count == 1
    assert stats.by_prefix.keys() == {"orders"}
    assert stats.by_prefix["orders"]["1h"].acquires == 2


def test_asyncio_clients_have_stats_too() -> None:
    async def story() -> None:
        async with lockfast.aio.connect("memory://") as client:
            client.stats()
            async with client.lock("orders/1"):
                pass
            assert client.stats().overall["15m"].granted == 1

    asyncio.run(story())
