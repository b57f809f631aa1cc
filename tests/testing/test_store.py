"""The testing kit, used as a program's own tests would use it."""

from __future__ import annotations

import asyncio
import threading

import pytest

import lockfast
import lockfast.aio
from lockfast import AcquireTimeoutError, LeaseLostError, LeaseState, StoreUnavailableError
from lockfast.guards import MemoryGuard
from lockfast.testing import ControlledStore, assert_fenced, assert_fenced_async

LONG_S = 3600


def test_each_store_is_empty_and_its_own() -> None:
    with ControlledStore() as one, ControlledStore() as other:
        with one.connect().lock("a"):
            one.assert_held("a")
            other.assert_free("a")
        one.assert_free("a")


def test_code_under_test_finds_the_store(lockfast_store: ControlledStore) -> None:
    with lockfast.lock("a"):
        lockfast_store.assert_held("a")
    with lockfast.connect() as client, client.lock("b"):
        lockfast_store.assert_held("b")


def test_windows_of_once_pass_without_waiting(
    lockfast_store: ControlledStore, lockfast_client: lockfast.Client
) -> None:
    runs = []
    job = lockfast_client.once("nightly", at_least=300, at_most=3600)(lambda: runs.append(1))
    job()
    job()
    lockfast_store.clock.advance(299)
    job()
    assert len(runs) == 1
    lockfast_store.clock.advance(1)
    job()
    assert len(runs) == 2


def test_a_short_advance_renews_and_a_long_one_loses(lockfast_store: ControlledStore) -> None:
    client = lockfast_store.connect(ttl=30)
    lease = client.lock("a").acquire()
    for _ in range(10):
        lockfast_store.clock.advance(20)
        assert lease.state is LeaseState.HELD
    lockfast_store.clock.advance(30)
    assert lease.state is LeaseState.LOST
    with pytest.raises(LeaseLostError):
        lease.release()
    lockfast_store.connect().lock("a").acquire(timeout=0).release()


def test_a_timeout_passes_without_waiting(lockfast_store: ControlledStore) -> None:
    errors: list[BaseException] = []
    held = lockfast_store.connect().lock("a").acquire()
    other = lockfast_store.connect()
    began = threading.Event()

    def wait() -> None:
        began.set()
        try:
            other.lock("a").acquire(timeout=LONG_S)
        except AcquireTimeoutError as error:
            errors.append(error)

    waiter = threading.Thread(target=wait)
    waiter.start()
    began.wait()
    while waiter.is_alive():
        lockfast_store.clock.advance(20)
        waiter.join(0.001)
    assert len(errors) == 1
    held.release()


def test_max_hold_passes_without_waiting(lockfast_store: ControlledStore) -> None:
    lease = lockfast_store.connect(ttl=600).lock("a", max_hold=60).acquire()
    lockfast_store.clock.advance(61)
    assert lease.lost.is_set()


def test_a_lease_is_lost_by_name_or_by_itself(lockfast_store: ControlledStore) -> None:
    client = lockfast_store.connect()
    told = threading.Event()
    lease = client.lock("a").acquire()
    lease.on_lost(lambda _: told.set())
    lockfast_store.lose("a", "the rack lost power")
    assert told.wait(20)
    with pytest.raises(LeaseLostError, match="the rack lost power"):
        lease.check()
    again = client.lock("a").try_acquire()
    assert again is not None
    lockfast_store.lose(again)
    assert again.lost.is_set()
    with pytest.raises(ValueError, match="holds 'a'"):
        lockfast_store.lose("a")


def test_an_outage_loses_leases_after_their_ttl(lockfast_store: ControlledStore) -> None:
    client = lockfast_store.connect(ttl=30)
    lease = client.lock("a").acquire()
    lockfast_store.down()
    with pytest.raises(StoreUnavailableError):
        client.lock("b").acquire()
    lockfast_store.clock.advance(20)
    assert lease.state is not LeaseState.LOST
    lockfast_store.clock.advance(10)
    assert lease.state is LeaseState.LOST
    lockfast_store.up()
    client.lock("a").acquire(timeout=0).release()


def test_slow_replies(lockfast_store: ControlledStore) -> None:
    client = lockfast_store.connect(connect_timeout=5)
    lockfast_store.slow(0.05)
    with client.lock("a") as lease:
        assert lease.remaining > 0
    lockfast_store.slow(LONG_S)
    with pytest.raises(lockfast.OutcomeUnknownError):
        lockfast_store.connect().lock("b").acquire()
    lockfast_store.up()


@pytest.mark.usefixtures("each_loop")
def test_the_task_of_a_lost_lease_is_cancelled(
    lockfast_store: ControlledStore, lockfast_aio_client: lockfast.aio.Client
) -> None:
    async def work() -> None:
        async with lockfast_aio_client.lock("a"):
            lockfast_store.lose("a", "the rack lost power")
            await asyncio.sleep(LONG_S)

    with pytest.raises(LeaseLostError, match="the rack lost power"):
        asyncio.run(work())


@pytest.mark.usefixtures("each_loop")
def test_time_passes_for_tasks_too(
    lockfast_store: ControlledStore, lockfast_aio_client: lockfast.aio.Client
) -> None:
    async def work() -> None:
        async with lockfast_aio_client.lock("a"):
            other = lockfast_store.connect_aio()
            waiting = asyncio.create_task(other.lock("a").acquire(timeout=25))
            await asyncio.sleep(0)
            lockfast_store.clock.advance(15)
            lockfast_store.clock.advance(15)
            with pytest.raises(AcquireTimeoutError):
                await waiting

    asyncio.run(work())


def test_a_guarded_resource_is_fenced_and_another_is_not() -> None:
    guard = MemoryGuard()
    assert_fenced(lambda token: guard.admit("a", token))
    with pytest.raises(AssertionError, match="not fenced"):
        assert_fenced(lambda token: None)

    async def write(token: int) -> None:
        guard.admit("b", token)

    async def unguarded(token: int) -> None:
        pass

    asyncio.run(assert_fenced_async(write))
    with pytest.raises(AssertionError, match="not fenced"):
        asyncio.run(assert_fenced_async(unguarded))


def test_assertions_say_who_holds(lockfast_store: ControlledStore) -> None:
    client = lockfast_store.connect(owner="worker-7")
    with pytest.raises(AssertionError, match="nobody holds the lock 'a'"):
        lockfast_store.assert_held("a")
    with client.lock("a") as lease:
        lockfast_store.assert_held(lease)
        with pytest.raises(AssertionError, match="worker-7"):
            lockfast_store.assert_free("a")
    with client.semaphore("pool", limit=2):
        lockfast_store.assert_held("pool", kind="semaphore")


def test_a_store_that_is_gone_is_not_found() -> None:
    with ControlledStore() as store:
        url = store.url
    with pytest.raises(lockfast.UnsupportedError, match="no such store"):
        lockfast.connect(url)
