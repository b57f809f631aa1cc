"""Waiting, through clients: in order, within the timeout, and removed after giving up."""

from __future__ import annotations

from contextlib import suppress

import pytest

from lockfast.conformance.callers import expect
from lockfast.conformance.faces import Client
from lockfast.conformance.harness import Contract, Stage, story
from lockfast.core import commands as c
from lockfast.errors import AcquireTimeoutError, LeaseLostError, StoreUnavailableError


async def is_free(client: Client, name: str) -> bool:
    """Return True if a lock has neither holders nor waiters."""
    info = await client.inspect(name)
    return (info.holder_count, info.waiting_count) == (0, 0)


class WaitingStories(Contract):
    """Waiting, on any store that supports it, in any order."""

    @story("waiting")
    async def test_a_lock_whose_holder_has_died_can_be_taken(self, stage: Stage) -> None:
        """The holder is a session without a keeper, so it expires."""
        (dead,) = stage.callers(stage.harness.session_for("dead", "a"), ttl_ms=500)
        granted = await dead.hold(1, c.Place("lock", "a", "exclusive"))
        client = stage.client()
        lease = await client.lock("a").acquire(timeout=30)
        assert lease.token > granted.token
        expect(await dead.look(1), c.Ended)
        await lease.release()

    @story("waiting")
    async def test_one_at_a_time_under_a_shared_recipe(self, stage: Stage) -> None:
        """Many threads or tasks share one Lock: each has its own lease, one at a time."""
        client = stage.client()
        lock = client.lock("a")
        inside = 0
        most = 0
        tokens: list[int] = []

        async def work() -> None:
            nonlocal inside, most
            for _ in range(5):
                async with lock as lease:
                    inside += 1
                    most = max(most, inside)
                    lease.check()
                    tokens.append(lease.token)
                    inside -= 1

        running = [stage.start(work()) for _ in range(8)]
        for worker in running:
            await worker.result()
        assert (most, len(tokens)) == (1, 40)
        assert tokens == sorted(set(tokens))
        assert await is_free(client, "a")

    @story("waiting")
    async def test_a_waiter_gives_up_after_its_timeout(self, stage: Stage) -> None:
        one, other = stage.clients(2)
        lease = await one.lock("a").acquire()
        with pytest.raises(AcquireTimeoutError) as caught:
            # Long enough for a slow server to reply: this tests waiting, not an outage.
            await other.lock("a").acquire(timeout=1.0)
        assert (caught.value.name, caught.value.timeout) == ("a", 1.0)
        await lease.release()
        async with other.lock("a"):
            pass

    @story("waiting")
    async def test_a_waiter_gets_the_lock_when_it_is_released(self, stage: Stage) -> None:
        one, other = stage.clients(2)
        lease = await one.lock("a").acquire()
        waiting = stage.start(other.lock("a").acquire(timeout=30))
        await lease.release()
        later = await waiting.result()
        assert later.token > lease.token
        await later.release()

    @story()
    async def test_a_lock_that_is_held_is_not_to_be_had(self, stage: Stage) -> None:
        one, other = stage.clients(2)
        lease = await one.lock("a").acquire()
        assert await other.lock("a").try_acquire() is None
        with pytest.raises(AcquireTimeoutError) as caught:
            await other.lock("a").acquire(timeout=0)
        assert (caught.value.name, caught.value.timeout) == ("a", 0.0)
        assert isinstance(caught.value, TimeoutError)
        await lease.release()
        taken = await other.lock("a").try_acquire()
        assert taken is not None
        assert taken.token > lease.token
        await taken.release()


class QueueStories(Contract):
    """A queue that clients can inspect, served in order of arrival."""

    @story("queue")
    async def test_inspect_shows_who_holds_and_who_waits(self, stage: Stage) -> None:
        one = stage.client(owner="holder")
        lease = await one.lock("a", ttl=20).acquire()
        others = [stage.client(owner=f"waiter-{i}") for i in range(3)]
        waiting = []
        for count, other in enumerate(others, 1):
            waiting.append(stage.start(other.lock("a").acquire(timeout=30)))
            await stage.until_waiting(one, "a", count)
        info = await one.inspect("a")
        assert (info.kind, info.name, info.limit, info.closed_for) == ("lock", "a", 0, 0.0)
        (holder,) = info.holders
        assert (holder.owner, holder.mode, holder.state) == ("holder", "exclusive", "holding")
        assert (holder.token, holder.session) == (lease.token, lease.session)
        assert 0 < holder.remaining <= 20
        assert [claim.owner for claim in info.waiting] == ["waiter-0", "waiter-1", "waiter-2"]
        assert {claim.token for claim in info.waiting} == {None}
        assert (info.holder_count, info.waiting_count) == (1, 3)
        await lease.release()
        for turn in waiting:
            await (await turn.result()).release()

    @story("queue")
    async def test_closing_gives_everything_back(self, stage: Stage) -> None:
        one, other = stage.clients(2)
        lease = await one.lock("a").acquire()
        stage.keep(await other.lock("b").acquire())
        waiting = stage.start(one.lock("b").acquire())
        await stage.until_waiting(other, "b")
        await one.close()
        assert lease.lost.is_set()
        assert (await other.inspect("b")).waiting_count == 0
        stage.keep(await other.lock("a").acquire(timeout=0))
        with pytest.raises(StoreUnavailableError, match="closed"):
            await waiting.result()

    @story("queue")
    async def test_a_waiter_that_gives_up_has_left_the_queue(self, stage: Stage) -> None:
        one, other, last = stage.client(owner="the-holder"), stage.client(), stage.client()
        lease = await one.lock("a").acquire()
        # Long enough for a slow store to queue the claim; only then does it know the holder.
        patience_s = 2.0
        with pytest.raises(AcquireTimeoutError, match="the-holder") as caught:
            await other.lock("a").acquire(timeout=patience_s)
        assert (caught.value.name, caught.value.timeout) == ("a", patience_s)
        waiting = stage.start(last.lock("a").acquire(timeout=30))
        await stage.until_waiting(one, "a")
        await lease.release()
        await (await waiting.result()).release()
        assert await is_free(one, "a")

    @story("queue")
    async def test_waiters_are_served_in_order_of_arrival(self, stage: Stage) -> None:
        clients = stage.clients(5)
        order: list[int] = []
        tokens: list[int] = []

        async def take_turn(number: int, client: Client) -> None:
            async with client.lock("a") as lease:
                order.append(number)
                tokens.append(lease.token)

        first = await clients[0].lock("a").acquire()
        turns = []
        for number, client in enumerate(clients):
            turns.append(stage.start(take_turn(number, client)))
            await stage.until_waiting(client, "a", number + 1)
        await first.release()
        for turn in turns:
            await turn.result()
        assert order == [0, 1, 2, 3, 4]
        assert [first.token, *tokens] == sorted({first.token, *tokens})

    @story("queue", "priority")
    async def test_a_higher_priority_goes_first(self, stage: Stage) -> None:
        one, other = stage.clients(2)
        order: list[int] = []

        async def take_turn(priority: int) -> None:
            async with other.lock("a", priority=priority):
                order.append(priority)

        lease = await one.lock("a").acquire()
        turns = []
        for count, priority in enumerate((0, 5, -5, 1000), 1):
            turns.append(stage.start(take_turn(priority)))
            await stage.until_waiting(one, "a", count)
        assert [claim.priority for claim in (await one.inspect("a")).waiting] == [1000, 5, 0, -5]
        await lease.release()
        for turn in turns:
            await turn.result()
        assert order == [1000, 5, 0, -5]

    @story("queue")
    async def test_an_interrupted_waiter_leaves_no_trace(self, stage: Stage) -> None:
        one, other = stage.clients(2)
        lease = await one.lock("a").acquire()

        async def once() -> None:
            await stage.until_waiting(one, "a")

        await stage.interrupt(other.lock("a").acquire(), once)
        await stage.until_waiting(one, "a", 0)
        await lease.release()
        assert await is_free(one, "a")
        async with other.lock("a"):
            pass

    @story("queue", "revoke")
    async def test_a_waiter_whose_session_is_ended_stands_in_line_again(self, stage: Stage) -> None:
        one, other = stage.clients(2)
        lease = await one.lock("a").acquire()
        waiting = stage.start(other.lock("a").acquire(timeout=30))
        await stage.until_waiting(one, "a")
        (claim,) = (await one.inspect("a")).waiting
        await one.revoke(session=claim.session, reason="maintenance")

        async def another() -> bool:
            claims = (await one.inspect("a")).waiting
            return bool(claims) and claims[0].session != claim.session

        await stage.until(another)
        await lease.release()
        granted = await waiting.result()
        assert granted.state == "held"
        await granted.release()


class ReentryStories(Contract):
    @story()
    async def test_the_same_actor_enters_again_with_the_same_token(self, stage: Stage) -> None:
        one, other = stage.clients(2)
        lock = one.lock("a", reentrant=True)
        async with lock as outer:
            async with one.lock("a", reentrant=True) as inner:
                assert inner.token == outer.token
            assert outer.state == "held"
            assert await other.lock("a").try_acquire() is None
        assert outer.state == "released"
        async with lock as again:
            assert again.token > outer.token

    @story()
    async def test_another_actor_does_not_enter(self, stage: Stage) -> None:
        """Not even one that was started by the holder."""
        client = stage.client()
        lock = client.lock("a", reentrant=True)
        async with lock:
            assert await stage.start(lock.try_acquire()).result() is None
        taken = await stage.start(lock.try_acquire()).result()
        assert taken is not None
        assert await lock.try_acquire() is None
        await taken.release()

    @story()
    async def test_without_being_asked_for_there_is_no_re_entry(self, stage: Stage) -> None:
        client = stage.client()
        async with client.lock("a"):
            assert await client.lock("a").try_acquire() is None

    @story()
    async def test_inner_blocks_of_a_lost_lease_raise_too(self, stage: Stage) -> None:
        client = stage.client()
        lock = client.lock("a", reentrant=True, max_hold=0.1)
        outer = await lock.acquire()
        with pytest.raises(LeaseLostError, match="max_hold"):
            async with lock as inner:
                await inner.lost.wait(30)
        with pytest.raises(LeaseLostError, match="max_hold"):
            await outer.release()
        again = await lock.acquire()
        assert again.token > outer.token
        with suppress(LeaseLostError):  # its max_hold is short, too
            await again.release()
