"""Wakes, by commands: which sessions are woken, with what, and that wakes arrive."""

from __future__ import annotations

from lockfast.conformance.callers import Caller, Listener, expect
from lockfast.conformance.harness import Contract, Stage, story
from lockfast.core import commands as c

A = c.Place("lock", "a", "exclusive")
B = c.Place("lock", "b", "exclusive")


def with_listener(stage: Stage, session: str) -> tuple[Caller, Listener]:
    listener = stage.listener(session)
    return stage.callers(session)[0].listening(listener), listener


class WakeStories(Contract):
    @story("queue")
    async def test_the_one_granted_is_woken_and_nobody_else(self, stage: Stage) -> None:
        (holder,) = stage.callers("holder")
        first, first_listener = with_listener(stage, "first")
        second, second_listener = with_listener(stage, "second")
        await holder.hold(1, A)
        await first.queue(1, A)
        await second.queue(1, A)
        await holder.leave(1)
        wake = await first_listener.hears(c.WAKE_GRANTED, 1)
        assert wake.session == "first"
        granted = await first.holds(1)
        if wake.token:
            assert wake.token == granted.token, "a token in a wake is the token of the grant"
        await first.leave(1)
        await second_listener.hears(c.WAKE_GRANTED, 1)
        told = [w for w in second_listener.heard if w.what == c.WAKE_GRANTED]
        assert told == [], "one wake for one grant"

    @story("queue")
    async def test_a_wake_names_the_claim(self, stage: Stage) -> None:
        (holder,) = stage.callers("holder")
        waiter, listener = with_listener(stage, "waiter")
        await holder.hold(1, A)
        await holder.hold(2, B)
        await waiter.queue(7, A)
        await waiter.queue(8, B)
        await holder.leave(2)
        await listener.hears(c.WAKE_GRANTED, 8)
        await holder.leave(1)
        await listener.hears(c.WAKE_GRANTED, 7)

    @story("revoke")
    async def test_a_claim_taken_away_is_a_reason_to_look(self, stage: Stage) -> None:
        holder, listener = with_listener(stage, "holder")
        (admin,) = stage.callers("admin")
        await holder.hold(3, A)
        await admin.send(c.Revoke("holder", 3, "admin", "stuck"))
        await listener.hears(c.WAKE_LOOK, 3)
        expect(await holder.look(3), c.Gone)

    @story("revoke")
    async def test_a_session_ended_by_others_is_told(self, stage: Stage) -> None:
        holder, listener = with_listener(stage, "holder")
        (admin,) = stage.callers("admin")
        await holder.hold(1, A)
        await admin.send(c.RevokeSession("holder", "admin", "enough"))
        await listener.hears(c.WAKE_ENDED)
        expect(await holder.look(1), c.Ended)

    @story("queue")
    async def test_a_waiter_is_told_when_the_one_before_it_leaves(self, stage: Stage) -> None:
        """Its blocker has changed, so it must watch another process."""
        holder, quitter = stage.callers("holder", "quitter")
        waiter, listener = with_listener(stage, "waiter")
        await holder.hold(1, A)
        await quitter.queue(1, A)
        await waiter.queue(1, A)
        await quitter.leave(1)
        await listener.hears(c.WAKE_LOOK, 1)
        assert [b.session for b in (await waiter.waits(1)).ahead] == ["holder"]

    @story("queue", "priority")
    async def test_a_waiter_is_told_when_another_stands_before_it(self, stage: Stage) -> None:
        holder, hurried = stage.callers("holder", "hurried")
        waiter, listener = with_listener(stage, "waiter")
        await holder.hold(1, A)
        await waiter.queue(1, A)
        await hurried.queue(1, A, priority=1, head_start_ms=60_000)
        await listener.hears(c.WAKE_LOOK, 1)
        assert [b.session for b in (await waiter.waits(1)).ahead] == ["hurried"]

    @story("queue")
    async def test_who_keeps_a_lock_is_told_that_others_want_it(self, stage: Stage) -> None:
        keeper, listener = with_listener(stage, "keeper")
        (other,) = stage.callers("other")
        await keeper.hold(1, A, block=1000)
        await other.queue(1, A)
        await listener.hears(c.WAKE_WANTED, 1)

    @story("watch")
    async def test_who_watches_is_told_of_what_is_written(self, stage: Stage) -> None:
        watcher, listener = with_listener(stage, "watcher")
        (other,) = stage.callers("other")
        await watcher.open()
        assert await watcher.send(c.Watch("watcher", True)) == c.Done()
        await other.hold(1, A)
        await listener.hears(c.WAKE_EVENTS)
        assert await watcher.send(c.Watch("watcher", False)) == c.Done()
        listener.heard.clear()
        await other.leave(1)
        # The end of its session comes after everything else.
        await other.send(c.Expel("watcher", "silent"))
        await listener.hears(c.WAKE_ENDED)
        assert c.WAKE_EVENTS not in {wake.what for wake in listener.heard}
