"""How long acquire waits, what its result can be used as, and leases with a fixed end."""

from __future__ import annotations

import asyncio
import copy
import pickle
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest

import lockfast
import lockfast.aio
from lockfast import (
    AcquireTimeoutError,
    LeaseLostError,
    LeaseState,
    UnsupportedError,
)
from lockfast.testing import ControlledStore

Face = Callable[..., Any]
NO_TIME = 0.01
KEPT: list[Any] = []
"""Keep what `do` returns: an unreferenced lease would be released."""


@pytest.fixture(autouse=True)
def kept_until_the_store_is_closed() -> Iterator[None]:
    yield
    KEPT.clear()


@pytest.fixture(params=["blocking", "aio"])
def connect(request: pytest.FixtureRequest, lockfast_store: ControlledStore) -> Face:
    return lockfast_store.connect if request.param == "blocking" else lockfast_store.connect_aio


def do(call: Callable[[], Any]) -> Any:
    """Call, and await the result if it can be awaited."""

    async def called() -> Any:
        result = call()
        return await result if hasattr(result, "__await__") else result

    result = asyncio.run(called())
    KEPT.append(result)
    return result


def enter(make: Callable[[], Any]) -> Any:
    """Use an object as a context manager, and return the lease that it gives."""

    async def entered() -> Any:
        manager = make()
        if hasattr(manager, "__aenter__"):
            async with manager as lease:
                return lease
        with manager as lease:
            return lease

    return asyncio.run(entered())


def test_the_timeout_of_a_lock_is_the_default_everywhere(connect: Face) -> None:
    do(connect().lock("a").acquire)
    client = connect()
    for recipe in (
        client.lock("a", timeout=NO_TIME),
        client.lock("a", timeout=timedelta(seconds=NO_TIME)),
        client.rwlock("a", timeout=NO_TIME).read(),
        client.all("a", "b", timeout=NO_TIME),
    ):
        with pytest.raises(AcquireTimeoutError) as caught:
            do(recipe.acquire)
        assert caught.value.timeout == NO_TIME
        with pytest.raises(AcquireTimeoutError):
            enter(lambda recipe=recipe: recipe)  # type: ignore[misc]


def test_the_timeout_of_trees_semaphores_and_decorators(connect: Face) -> None:
    first, client = connect(), connect()
    do(first.tree("a").write().acquire)
    do(first.semaphore("a", 1).acquire)
    do(first.lock("a").acquire)
    for recipe in (
        client.tree("a/b", timeout=NO_TIME).write(),
        client.semaphore("a", 1, timeout=NO_TIME),
    ):
        with pytest.raises(AcquireTimeoutError):
            do(recipe.acquire)
    lock = client.lock("a", timeout=NO_TIME)

    def work() -> None: ...

    async def work_async() -> None: ...

    decorated = lock(work if isinstance(client, lockfast.Client) else work_async)
    with pytest.raises(AcquireTimeoutError):
        do(decorated)


def test_acquire_overrules_the_timeout_of_its_lock(
    connect: Face, lockfast_store: ControlledStore
) -> None:
    held = do(connect().lock("a").acquire)
    client = connect()
    with pytest.raises(AcquireTimeoutError) as caught:
        do(lambda: client.lock("a", timeout=3600).acquire(timeout=0))
    assert caught.value.timeout == 0
    do(held.release)
    do(lambda: client.lock("a", timeout=0).acquire(timeout=None))


@pytest.mark.parametrize("wrong", ["5", float("nan"), -1, True])
def test_a_wrong_timeout_is_refused_when_the_lock_is_made(connect: Face, wrong: Any) -> None:
    with pytest.raises((TypeError, ValueError), match="timeout"):
        connect().lock("a", timeout=wrong)


def test_a_positional_timeout_says_what_to_write(connect: Face) -> None:
    client = connect()
    with pytest.raises(TypeError, match=r"write acquire\(timeout=5\)"):
        client.lock("a").acquire(5)
    with pytest.raises(TypeError, match=r"acquire\(permits=5\) or acquire\(timeout=5\)"):
        client.semaphore("a", 9).acquire(5)


def test_what_acquire_returns_is_a_context_manager(
    connect: Face, lockfast_store: ControlledStore
) -> None:
    client = connect()
    assert enter(lambda: client.lock("a").acquire(timeout=5)).state is LeaseState.RELEASED
    assert enter(lambda: client.semaphore("a", 2).acquire(permits=2)).permits == 2
    assert enter(lambda: client.election("a").campaign("me")).epoch > 0
    assert enter(lambda: client.party("a").join("me")).state is LeaseState.RELEASED
    lockfast_store.assert_free("a")


@pytest.mark.usefixtures("each_loop")
def test_an_acquire_to_come_is_a_coroutine(lockfast_aio_client: lockfast.aio.Client) -> None:
    lock = lockfast_aio_client.lock("a")

    async def work() -> None:
        lease = await asyncio.create_task(lock.acquire())
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(lockfast_aio_client.lock("a").acquire(), NO_TIME)
        await lease.release()
        one, other = await asyncio.gather(lock.acquire(), lockfast_aio_client.lock("b").acquire())
        await one.release()
        await other.release()
        async with lock.acquire(timeout=0) as lease:
            lease.check()
        lock.acquire().close()

    asyncio.run(work())


@pytest.mark.usefixtures("each_loop")
def test_a_lost_lease_cancels_the_block_of_its_acquire(
    lockfast_aio_client: lockfast.aio.Client, lockfast_store: ControlledStore
) -> None:
    async def work() -> None:
        async with lockfast_aio_client.lock("a").acquire():
            lockfast_store.lose("a", "by the test")
            await asyncio.sleep(3600)

    with pytest.raises(LeaseLostError, match="by the test"):
        asyncio.run(work())


def test_locked(connect: Face) -> None:
    client, other = connect(), connect()
    assert do(client.lock("a").locked) is False
    lease = do(other.lock("a").acquire)
    assert do(client.lock("a").locked) is True
    assert do(client.all("b", "a").locked) is True
    do(lease.release)
    assert do(client.lock("a").locked) is False
    reader = do(other.rwlock("a").read().acquire)
    assert do(client.rwlock("a").read().locked) is False
    assert do(client.rwlock("a").write().locked) is True
    do(reader.release)
    writer = do(other.tree("x").write().acquire)
    assert do(client.tree("x/y").read().locked) is True
    do(writer.release)


# ── leases with a fixed end ──────────────────────────────────────────────────────────


def test_a_fixed_lease_ends_and_admits_the_next(
    connect: Face, lockfast_store: ControlledStore
) -> None:
    lease = do(connect().lock("a", ttl=30, renew=False).acquire)
    lockfast_store.clock.advance(20)
    assert lease.state is LeaseState.HELD
    assert 5 < lease.remaining < 10
    lockfast_store.clock.advance(10)
    with pytest.raises(LeaseLostError, match="its fixed term elapsed"):
        lease.check()
    do(lambda: connect().lock("a").acquire(timeout=5))


def test_extend_moves_the_end(connect: Face, lockfast_store: ControlledStore) -> None:
    lease = do(connect().lock("a", ttl=30, renew=False).acquire)
    for _ in range(3):
        lockfast_store.clock.advance(15)
        do(lambda: lease.extend(15))
    lockfast_store.clock.advance(15)
    assert lease.state is LeaseState.HELD
    lockfast_store.clock.advance(15)
    with pytest.raises(LeaseLostError):
        do(lambda: lease.extend(15))


def test_extend_stays_within_max_hold(connect: Face, lockfast_store: ControlledStore) -> None:
    lease = do(connect(ttl=60).lock("a", ttl=60, renew=False, max_hold=80).acquire)
    do(lambda: lease.extend(3600))
    assert lease.remaining < 80
    lockfast_store.clock.advance(50)
    lockfast_store.clock.advance(30)
    with pytest.raises(LeaseLostError, match="its max_hold elapsed"):
        lease.check()


def test_extend_asks_the_store(connect: Face, lockfast_store: ControlledStore) -> None:
    client = connect()
    lease = do(client.lock("a", renew=False).acquire)
    table = lockfast_store._table
    table.start()  # the store lost all its data
    with pytest.raises(LeaseLostError):
        do(lambda: lease.extend(5))
    assert lease.state is LeaseState.LOST


def test_extending_a_renewed_lease_says_that_it_needs_none(connect: Face) -> None:
    lease = do(connect().lock("a").acquire)
    with pytest.raises(UnsupportedError, match="renewed in the background"):
        do(lambda: lease.extend(5))
    with pytest.raises((TypeError, ValueError), match="seconds"):
        do(lambda: lease.extend(-1))


def test_a_retained_lock_has_no_fixed_end(connect: Face) -> None:
    with pytest.raises(ValueError, match="renew"):
        connect().lock("a", retain=True, renew=False)


# ── repr and pickle ──────────────────────────────────────────────────────────────────


def test_reprs_name_what_they_are_and_where(connect: Face) -> None:
    client = connect()
    for recipe, kind in (
        (client.lock("a"), "Lock 'a'"),
        (client.rwlock("a"), "RWLock 'a'"),
        (client.tree("a/b"), "Tree 'a/b'"),
        (client.semaphore("a", 2), "Semaphore 'a'"),
        (client.election("a"), "Election 'a'"),
        (client.party("a"), "Party 'a'"),
        (client.once("a", at_least=1, at_most=2), "Once 'a'"),
    ):
        assert repr(recipe) == f"<{kind} on {client.url}>"


def test_reprs_of_leases_tell_token_state_and_time(
    connect: Face, lockfast_store: ControlledStore
) -> None:
    client = connect(ttl=30)
    lease = do(client.lock("a").acquire)
    assert f"<Lease 'a' token={lease.token} held, 2" in repr(lease)
    lockfast_store.clock.advance(40)
    assert repr(lease) == f"<Lease 'a' token={lease.token} lost>"
    permit = do(lambda: client.semaphore("s", 3).acquire(permits=2))
    assert "<Permit 's' permits=2 held" in repr(permit)
    do(permit.release)
    assert repr(permit) == "<Permit 's' permits=2 released>"


@pytest.mark.parametrize("copying", [pickle.dumps, copy.copy, copy.deepcopy])
def test_pickling_says_why_not(connect: Face, copying: Callable[[Any], Any]) -> None:
    client = connect()
    lease = do(client.lock("a").acquire)
    for thing in (client, client.lock("a"), client.rwlock("a"), lease):
        with pytest.raises(UnsupportedError, match="pickling") as caught:
            copying(thing)
        assert "process" in str(caught.value)
