"""The asyncio API: a task inside a block is cancelled when its lease is lost, and only then."""

from __future__ import annotations

import asyncio
import gc
import time
import warnings
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import pytest

from lockfast import LeaseLostError, LeaseState, StoreUnavailableError, aio
from tests.api.worlds import CuttableStore, fresh_url, use

pytestmark = pytest.mark.usefixtures("each_loop")
PATIENCE = 30
SHORT = 0.1


@asynccontextmanager
async def connected(**settings: Any) -> AsyncIterator[aio.Client]:
    client = aio.connect(fresh_url(), **settings)
    try:
        yield client
    finally:
        await client.close()


def run(story: Callable[[aio.Client], Coroutine[Any, Any, None]], **settings: Any) -> None:
    """Run a test with a client, on its own loop; no task may be left on it."""

    async def told() -> None:
        async with asyncio.timeout(2 * PATIENCE), connected(**settings) as client:
            await story(client)
        task = asyncio.current_task()
        assert task is not None
        assert task.cancelling() == 0
        await asyncio.sleep(0)  # a left-over cancellation would be raised here

    asyncio.run(told(), debug=True)


async def until(true: Callable[[], Awaitable[object]]) -> None:
    async with asyncio.timeout(PATIENCE):
        while not await true():
            await asyncio.sleep(0.005)


# ── losing ───────────────────────────────────────────────────────────────────────────


def test_a_loss_cancels_the_body_and_raises_its_own_error() -> None:
    async def story(client: aio.Client) -> None:
        cancelled = False
        with pytest.raises(LeaseLostError, match="max_hold") as caught:
            async with client.lock("a", max_hold=SHORT):
                try:
                    await asyncio.sleep(PATIENCE)
                except asyncio.CancelledError:
                    cancelled = True
                    raise
        assert cancelled
        assert isinstance(caught.value.__cause__, asyncio.CancelledError)

    run(story)


def test_a_lease_as_a_block_does_so_too() -> None:
    async def story(client: aio.Client) -> None:
        with pytest.raises(LeaseLostError):
            async with await client.lock("a", max_hold=SHORT).acquire():
                await asyncio.sleep(PATIENCE)

    run(story)


def test_a_decorated_function_is_cancelled_too() -> None:
    async def story(client: aio.Client) -> None:
        @client.lock("a", max_hold=SHORT)
        async def work() -> None:
            await asyncio.sleep(PATIENCE)

        with pytest.raises(LeaseLostError):
            await work()

    run(story)


def test_a_body_that_swallows_the_cancellation_still_raises() -> None:
    async def story(client: aio.Client) -> None:
        went_on = False
        with pytest.raises(LeaseLostError):
            async with client.lock("a", max_hold=SHORT):
                try:
                    await asyncio.sleep(PATIENCE)
                except asyncio.CancelledError:
                    pass
                await asyncio.sleep(0)
                went_on = True
        assert went_on

    run(story)


def test_an_error_while_being_cancelled_wins() -> None:
    async def story(client: aio.Client) -> None:
        with pytest.raises(ZeroDivisionError) as caught:
            async with client.lock("a", max_hold=SHORT):
                try:
                    await asyncio.sleep(PATIENCE)
                finally:
                    raise ZeroDivisionError
        seen: list[BaseException] = []
        link: BaseException | None = caught.value
        while link is not None:
            assert link not in seen
            seen.append(link)
            link = link.__cause__ or link.__context__
        assert any(isinstance(link, LeaseLostError) for link in seen)

    run(story)


def test_a_lease_without_a_block_cancels_nobody() -> None:
    async def story(client: aio.Client) -> None:
        lease = await client.lock("a", max_hold=SHORT).acquire()
        assert await lease.lost.wait(PATIENCE)
        await asyncio.sleep(0.01)
        with pytest.raises(LeaseLostError):
            await lease.release()

    run(story)


def test_a_loss_after_the_block_cancels_nobody() -> None:
    async def story(client: aio.Client) -> None:
        async with client.lock("a", max_hold=SHORT) as lease:
            pass
        assert lease.state is LeaseState.RELEASED
        other = await client.lock("b", max_hold=SHORT).acquire()
        assert await other.lost.wait(PATIENCE), "as long as `a` could have been held"

    run(story)


def test_a_loss_seen_first_when_the_block_ends_cancels_nobody() -> None:
    """The notice of the loss waits for the blocked loop and arrives after the block has ended."""

    async def story(client: aio.Client) -> None:
        with pytest.raises(LeaseLostError):
            async with client.lock("a", max_hold=SHORT):
                time.sleep(3 * SHORT)
        await asyncio.sleep(0.01)
        task = asyncio.current_task()
        assert task is not None
        assert task.cancelling() == 0

    run(story)


def test_only_the_task_inside_is_cancelled() -> None:
    async def story(client: aio.Client) -> None:
        inside = asyncio.Event()

        async def hold() -> None:
            async with client.lock("a", max_hold=SHORT):
                inside.set()
                await asyncio.sleep(PATIENCE)

        holder = asyncio.create_task(hold())
        await inside.wait()
        with pytest.raises(LeaseLostError):
            await holder
        assert not holder.cancelled()

    run(story)


def test_a_group_of_tasks_inside_a_block_is_cancelled_with_it() -> None:
    async def story(client: aio.Client) -> None:
        stopped = 0

        async def work() -> None:
            nonlocal stopped
            try:
                await asyncio.sleep(PATIENCE)
            finally:
                stopped += 1

        with pytest.raises(LeaseLostError):
            async with client.lock("a", max_hold=SHORT), asyncio.TaskGroup() as group:
                for _ in range(3):
                    group.create_task(work())
        assert stopped == 3

    run(story)


# ── other cancellations ──────────────────────────────────────────────────────────────


def test_a_cancellation_from_outside_stays_one() -> None:
    async def story(client: aio.Client) -> None:
        inside = asyncio.Event()

        async def hold() -> None:
            async with client.lock("a"):
                inside.set()
                await asyncio.sleep(PATIENCE)

        task = asyncio.create_task(hold())
        await inside.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert task.cancelled()
        assert (await client.inspect("a")).holder_count == 0, "and the lock is given back"

    run(story)


def test_a_cancellation_from_outside_wins_over_a_loss() -> None:
    """If both happen at once, whoever cancelled the task sees it cancelled."""

    async def story(client: aio.Client) -> None:
        inside = asyncio.Event()

        async def hold() -> None:
            async with client.lock("a") as lease:
                inside.set()
                await lease.lost.wait()
                await asyncio.sleep(PATIENCE)

        task = asyncio.create_task(hold())
        await inside.wait()
        await client.revoke("a", reason="test")
        # Both arrive in the same iteration of the loop.
        time.sleep(0.05)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert task.cancelled()

    run(story)


@pytest.mark.parametrize("where", ["around", "inside"])
def test_a_timeout_that_is_over_is_a_timeout(where: str) -> None:
    async def story(client: aio.Client) -> None:
        with pytest.raises(TimeoutError):
            if where == "around":
                async with asyncio.timeout(0.05):
                    async with client.lock("a"):
                        await asyncio.sleep(PATIENCE)
            else:
                async with client.lock("a"):
                    async with asyncio.timeout(0.05):
                        await asyncio.sleep(PATIENCE)
        assert (await client.inspect("a")).holder_count == 0

    run(story)


@pytest.mark.parametrize("where", ["around", "inside"])
def test_a_timeout_that_is_not_over_does_not_hide_a_loss(where: str) -> None:
    async def story(client: aio.Client) -> None:
        with pytest.raises(LeaseLostError):
            if where == "around":
                async with asyncio.timeout(PATIENCE):
                    async with client.lock("a", max_hold=SHORT):
                        await asyncio.sleep(PATIENCE)
            else:
                async with client.lock("a", max_hold=SHORT):
                    async with asyncio.timeout(PATIENCE):
                        await asyncio.sleep(PATIENCE)

    run(story)


def test_a_timeout_goes_on_counting_after_a_loss() -> None:
    """The cancellation caused by the loss is undone, so an enclosing timeout still works."""

    async def story(client: aio.Client) -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(SHORT + 0.3):
                with pytest.raises(LeaseLostError):
                    async with client.lock("a", max_hold=SHORT):
                        await asyncio.sleep(PATIENCE)
                await asyncio.sleep(PATIENCE)

    run(story)


def test_two_nested_leases_lost_together_raise_once_each_is_left() -> None:
    async def story(client: aio.Client) -> None:
        other = aio.connect(client.url)
        entered = 0

        async def hold() -> None:
            nonlocal entered
            async with client.lock("a") as first:
                async with client.lock("b") as second:
                    assert first.session == second.session
                    entered += 1
                    await other.revoke(session=first.session, reason="both")
                    await asyncio.sleep(PATIENCE)

        with pytest.raises(LeaseLostError, match="both"):
            await hold()
        assert entered == 1
        await other.close()

    run(story)


def test_re_entered_blocks_raise_once_each_is_left() -> None:
    async def story(client: aio.Client) -> None:
        lock = client.lock("a", reentrant=True, max_hold=SHORT)
        with pytest.raises(LeaseLostError):
            async with lock:
                async with lock:
                    await asyncio.sleep(PATIENCE)

    run(story)


def test_a_block_inside_a_lease_that_was_acquired_raises() -> None:
    """The inner release is not the last one, but it must still report the loss."""

    async def story(client: aio.Client) -> None:
        lock = client.lock("a", reentrant=True, max_hold=SHORT)
        lease = await lock.acquire()
        with pytest.raises(LeaseLostError):
            async with lock:
                await asyncio.sleep(PATIENCE)
        with pytest.raises(LeaseLostError):
            await lease.release()

    run(story)


def test_a_task_already_being_cancelled_may_use_locks() -> None:
    """As in clean-up code: a cancellation from before the block does not concern the block."""

    async def story(client: aio.Client) -> None:
        cleaned: list[str] = []
        started = asyncio.Event()

        async def work() -> None:
            try:
                started.set()
                await asyncio.sleep(PATIENCE)
            finally:
                async with client.lock("a"):
                    cleaned.append("locked")
                with pytest.raises(LeaseLostError):
                    async with client.lock("a", max_hold=SHORT):
                        await asyncio.sleep(PATIENCE)
                cleaned.append("lost")

        task = asyncio.create_task(work())
        await started.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert cleaned == ["locked", "lost"]

    run(story)


# ── waiting ──────────────────────────────────────────────────────────────────────────


def test_cancelled_waiters_leave_no_trace() -> None:
    async def story(client: aio.Client) -> None:
        async with client.lock("a"):
            waiters = [asyncio.create_task(client.lock("a").acquire()) for _ in range(50)]

            async def all_wait() -> bool:
                return (await client.inspect("a")).waiting_count == 50

            async def none_waits() -> bool:
                return (await client.inspect("a")).waiting_count == 0

            await until(all_wait)
            for waiter in waiters:
                waiter.cancel()
            results = await asyncio.gather(*waiters, return_exceptions=True)
            assert {type(result) for result in results} == {asyncio.CancelledError}
            await until(none_waits)
        async with client.lock("a"):
            pass

    run(story)


def test_a_grant_that_meets_a_cancellation_is_given_back() -> None:
    async def story(client: aio.Client) -> None:
        for _ in range(20):
            lease = await client.lock("a").acquire()
            waiter = asyncio.create_task(client.lock("a").acquire())

            async def waits() -> bool:
                return (await client.inspect("a")).waiting_count == 1

            await until(waits)
            release = asyncio.create_task(lease.release())
            await asyncio.sleep(0)
            waiter.cancel()
            (result,) = await asyncio.gather(waiter, return_exceptions=True)
            await release
            if not isinstance(result, BaseException):
                await result.release()
            async with asyncio.timeout(PATIENCE), client.lock("a"):
                pass

    run(story)


def test_a_blocked_loop_does_not_lose_a_lease() -> None:
    async def story(client: aio.Client) -> None:
        async with client.lock("a", ttl=0.3) as lease:
            time.sleep(0.6)
            lease.check()
            await asyncio.sleep(0)
        assert lease.state is LeaseState.RELEASED

    run(story)


def test_a_client_serves_one_loop_after_another() -> None:
    client = aio.connect(fresh_url())
    tokens = []

    async def take() -> None:
        async with client.lock("a") as lease:
            tokens.append(lease.token)

    for _ in range(3):
        asyncio.run(take())
    asyncio.run(client.close())
    assert tokens == sorted(set(tokens))


def test_a_loop_that_is_gone_is_not_told() -> None:
    """A lease outlives its loop and is lost: there is nothing to notify, and nothing fails."""
    client = aio.connect(fresh_url(), ttl=0.3)
    leases = []

    async def take() -> None:
        lease = await client.lock("a", max_hold=SHORT).acquire()
        lease.on_lost(lambda lease: pytest.fail("its loop is closed"))
        leases.append(lease)

    asyncio.run(take())

    async def later() -> None:
        assert await leases[0].lost.wait(PATIENCE)
        async with client.lock("a"):
            pass
        await client.close()

    asyncio.run(later())


def test_callbacks_run_on_the_loop() -> None:
    async def story(client: aio.Client) -> None:
        told: asyncio.Future[asyncio.Task[Any] | None] = asyncio.get_running_loop().create_future()
        lease = await client.lock("a", max_hold=SHORT).acquire()
        lease.on_lost(lambda lease: told.set_result(asyncio.current_task()))
        async with asyncio.timeout(PATIENCE):
            assert await told is None

    run(story)


def test_a_dropped_lease_is_given_back() -> None:
    async def story(client: aio.Client) -> None:
        lease: Any = await client.lock("a").acquire()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            del lease
            gc.collect()
        assert [warning.category for warning in caught] == [ResourceWarning]
        async with asyncio.timeout(PATIENCE), client.lock("a"):
            pass

    run(story)


def test_a_store_out_of_reach_does_not_block_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    store = CuttableStore()
    use(monkeypatch, store)

    async def story(client: aio.Client) -> None:
        store.cut()
        ticks = 0

        async def tick() -> None:
            nonlocal ticks
            while True:
                await asyncio.sleep(0.01)
                ticks += 1

        ticking = asyncio.create_task(tick())
        with pytest.raises(StoreUnavailableError):
            await client.lock("a").acquire(timeout=PATIENCE)
        ticking.cancel()
        assert ticks >= 3
        store.mend()

    run(story, connect_timeout=0.3)
