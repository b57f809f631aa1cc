"""Claims, by commands: order, idempotence, late commands, limits, revocation."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from lockfast.conformance.callers import R, expect
from lockfast.conformance.harness import Contract, Stage, story
from lockfast.core import commands as c

A = c.Place("lock", "a", "exclusive")
B = c.Place("lock", "b", "exclusive")
ONCE = c.Place("once", "o", "exclusive")
SPAN_MS = 400
"""A span whose end is waited for."""
LONG_MS = 60_000
"""A span that does not end during a test, however slow the machine is."""
ATTEMPTS_MAX = 9


class GrantStories(Contract):
    @story()
    async def test_a_free_lock_is_granted_at_once(self, stage: Stage) -> None:
        (caller,) = stage.callers("s")
        granted = await caller.hold(1, A, actor="thread-7", value="v")
        assert granted.mode == "exclusive"
        (view,) = (await caller.inspect("lock", "a")).holders
        assert (view.session, view.n, view.token) == ("s", 1, granted.token)
        assert (view.owner, view.actor, view.value) == ("owner of s", "thread-7", "v")
        assert (view.state, view.places) == ("holding", (A,))

    @story()
    async def test_tokens_rise_with_every_grant_whatever_the_lock(self, stage: Stage) -> None:
        one, other = stage.callers("one", "other")
        tokens = []
        for n in range(1, 6):
            tokens.append((await one.hold(2 * n, A)).token)
            tokens.append((await other.hold(n, B)).token)
            await one.leave(2 * n)
            tokens.append((await other.hold(100 + n, A)).token)
            await other.leave(100 + n)
            await other.leave(n)
        assert tokens == sorted(set(tokens))
        assert 0 < tokens[0] < tokens[-1] < 2**53

    @story("retain")
    async def test_tokens_come_in_blocks_where_asked_for(self, stage: Stage) -> None:
        """All tokens of the block belong to the claim: the next grant's token is higher."""
        (caller,) = stage.callers("s")
        wide = await caller.hold(1, A, block=1_000_000_000)
        after = await caller.hold(2, B)
        assert after.token >= wide.token + 1_000_000_000

    @story("queue")
    async def test_claims_are_served_in_order_of_arrival(self, stage: Stage) -> None:
        callers = stage.callers(*(f"s{i}" for i in range(6)))
        tokens = [(await callers[0].hold(1, A)).token]
        for caller in callers[1:]:
            await caller.queue(1, A)
        for before, after in itertools.pairwise(callers):
            await before.leave(1)
            tokens.append((await after.holds(1)).token)
            for later in callers[callers.index(after) + 1 :]:
                await later.waits(1)
        assert tokens == sorted(set(tokens))

    @story("queue")
    async def test_who_waits_is_told_whom_for(self, stage: Stage) -> None:
        """The first waiter waits for the holder, every other for the claim before it."""
        holder, first, second = stage.callers("holder", "first", "second")
        holder.opening = holder.opening._replace(process="boot:1:2:3")
        granted = await holder.hold(1, A)
        await holder.renewed()
        (ahead,) = (await first.queue(1, A)).ahead
        assert ahead.held
        assert (ahead.session, ahead.n, ahead.token) == ("holder", 1, granted.token)
        process = "boot:1:2:3" if stage.harness.keeps_process else ""
        assert (ahead.owner, ahead.process) == ("owner of holder", process)
        (looked,) = (await first.waits(1)).ahead
        assert looked.renewals == 1, "a store may omit it only from the reply to Enter"
        (ahead,) = (await second.queue(1, A)).ahead
        assert (ahead.session, ahead.n, ahead.held) == ("first", 1, False)
        await first.leave(1)
        assert [b.session for b in (await second.waits(1)).ahead] == ["holder"]

    @story("queue")
    async def test_one_session_may_wait_for_itself(self, stage: Stage) -> None:
        """Claims of one client exclude each other like those of different clients."""
        (caller,) = stage.callers("s")
        await caller.hold(1, A)
        await caller.queue(2, A)
        await caller.queue(3, A)
        await caller.leave(1)
        await caller.holds(2)
        await caller.waits(3)

    @story("queue", "priority")
    async def test_a_head_start_goes_before_those_who_came_a_little_earlier(
        self, stage: Stage
    ) -> None:
        holder, early, late = stage.callers("holder", "early", "late")
        await holder.hold(1, A)
        await early.queue(1, A)
        await late.queue(1, A, priority=1, head_start_ms=60_000)
        await early.waits(1)
        view = await holder.inspect("lock", "a")
        assert [claim.session for claim in view.waiting] == ["late", "early"]
        assert [claim.priority for claim in view.waiting] == [1, 0]
        await holder.holds(1)
        await holder.leave(1)
        await late.holds(1)
        await early.waits(1)

    @story("queue", "priority")
    async def test_a_head_start_is_over_one_day(self, stage: Stage) -> None:
        """So claims of higher priority cannot starve one of lower priority."""
        holder, early, late = stage.callers("holder", "early", "late")
        await holder.hold(1, A)
        await early.queue(1, A)
        await stage.pass_ms(SPAN_MS)
        await late.queue(1, A, priority=1, head_start_ms=SPAN_MS // 2)
        await holder.leave(1)
        await early.holds(1)

    @story("queue")
    async def test_a_hundred_wait_in_line(self, stage: Stage) -> None:
        holder, crowd = stage.callers("holder", "crowd")
        await holder.hold(1, A)
        for n in range(1, 101):
            await crowd.queue(n, A)
        assert (await holder.inspect("lock", "a")).waiting_count == 100
        await holder.leave(1)
        for n in range(1, 101):
            await crowd.holds(n)
            await crowd.leave(n)
        view = await holder.inspect("lock", "a")
        assert (view.holder_count, view.waiting_count) == (0, 0)

    @pytest.mark.parametrize(
        "names",
        [
            ("a", "A"),
            ("a", "a "),
            ("a", "a/b"),
            ("a/b", "a:b"),
            ("a%", "a_"),
            ("%", "_"),
            ("a*", "ab"),
            ("'", '"'),
            ("ä", "a"),
            ("ss", "ß"),
            ("ﬁ", "fi"),
            ("i", "ı"),
            ("{a}", "a"),
            ("x" * 511, "x" * 512),
            ("é" * 256, "é" * 255),
            ("𝔸", "A"),
            ("a\U0010ffff", "a"),
            ("\\0", "0"),
            ("--", ";"),
        ],
    )
    @story()
    async def test_two_names_are_two_locks(self, stage: Stage, names: tuple[str, str]) -> None:
        (caller,) = stage.callers("s")
        for n, name in enumerate(names, 1):
            await caller.hold(n, c.Place("lock", name, "exclusive"))
        for n, name in enumerate(names, 1):
            (holder,) = (await caller.inspect("lock", name)).holders
            assert holder.n == n
        listing = expect(await caller.send(c.Listing("lock")), c.ListingReply)
        assert [view.name for view in listing.resources] == sorted(names)

    @story("modes")
    async def test_two_kinds_are_two_locks(self, stage: Stage) -> None:
        (caller,) = stage.callers("s")
        kinds = ("lock", "tree", "election", "once")
        for n, kind in enumerate(kinds, 1):
            await caller.hold(n, c.Place(kind, "a", "exclusive"))
        assert len(await caller.claims()) == len(kinds)


class IdempotenceStories(Contract):
    @story("queue")
    async def test_entering_twice_is_one_claim(self, stage: Stage) -> None:
        holder, waiter = stage.callers("holder", "waiter")
        granted = await holder.hold(1, A)
        assert (await holder.hold(1, A)).token == granted.token
        await waiter.queue(1, A)
        await waiter.queue(1, A)
        assert (await holder.inspect("lock", "a")).waiting_count == 1
        await holder.leave(1)
        handed_over = await waiter.holds(1)
        assert (await waiter.hold(1, A)).token == handed_over.token
        assert len(await waiter.claims()) == 1

    @story()
    async def test_a_claim_given_up_cannot_be_entered_again(self, stage: Stage) -> None:
        """An `Enter` that was sent before its `Leave` but arrives after it has no effect."""
        (caller,) = stage.callers("s")
        await caller.hold(1, A)
        assert await caller.leave(1) == c.Done(found=True)
        assert expect(await caller.enter(1, A), c.Refused).why == c.WHY_FINISHED
        assert (await caller.inspect("lock", "a")).holder_count == 0

    @story()
    async def test_a_leave_that_overtakes_its_enter_counts(self, stage: Stage) -> None:
        (caller,) = stage.callers("s")
        await caller.open()
        assert await caller.leave(1) == c.Done(found=False)
        assert expect(await caller.enter(1, A), c.Refused).why == c.WHY_FINISHED
        assert (await caller.inspect("lock", "a")).holder_count == 0
        await caller.hold(2, A)

    @story("queue")
    async def test_a_waiting_claim_given_up_is_not_granted(self, stage: Stage) -> None:
        holder, quitter, last = stage.callers("holder", "quitter", "last")
        await holder.hold(1, A)
        await quitter.queue(1, A)
        await last.queue(1, A)
        assert await quitter.leave(1) == c.Done(found=True)
        assert await quitter.leave(1) == c.Done(found=False)
        await holder.leave(1)
        await last.holds(1)
        assert expect(await quitter.enter(1, A), c.Refused).why == c.WHY_FINISHED

    @story()
    async def test_leaving_twice_ends_nobody_elses_claim(self, stage: Stage) -> None:
        one, other = stage.callers("one", "other")
        await one.hold(1, A)
        await one.leave(1)
        await other.hold(1, A)
        assert await one.leave(1) == c.Done(found=False)
        await other.holds(1)

    @story("queue")
    async def test_claims_may_arrive_in_any_order(self, stage: Stage) -> None:
        """A skipped claim number may still arrive, until the client gives it up."""
        (caller,) = stage.callers("s")
        await caller.hold(5, A)
        await caller.queue(3, A)
        await caller.leave(4)
        await caller.hold(1, B)
        await caller.queue(2, B)
        for n in (1, 5):
            await caller.hold(n, A)
        for n in (2, 3):
            await caller.queue(n, A)
        assert expect(await caller.enter(4, A), c.Refused).why == c.WHY_FINISHED
        assert [claim.n for claim in await caller.claims()] == [1, 2, 3, 5]

    @story()
    async def test_what_is_finished_for_good_is_forgotten_but_stays_finished(
        self, stage: Stage
    ) -> None:
        (caller,) = stage.callers("s")
        await caller.open()
        await caller.leave(8)
        await caller.renewed(lowest=10)
        for n in (1, 7, 8, 9):
            refused = expect(await caller.enter(n, A), c.Refused)
            assert refused.why == c.WHY_FINISHED, n
        await caller.hold(10, A)
        await caller.renewed(lowest=10)
        await caller.holds(10)
        await caller.hold(12, B)
        assert (await caller.renewed(lowest=10)).matches

    @story()
    async def test_hold_now_or_not_at_all(self, stage: Stage) -> None:
        """A claim that does not queue is not recorded unless it is granted."""
        holder, other = stage.callers("holder", "other")
        granted = await holder.hold(1, A, queue=False)
        busy = expect(await other.enter(1, A, queue=False), c.Busy)
        assert [(b.session, b.token) for b in busy.ahead] == [("holder", granted.token)]
        assert await other.claims() == ()
        view = await holder.inspect("lock", "a")
        assert (view.holder_count, view.waiting_count) == (1, 0)
        other.account = {}
        assert (await other.renewed()).matches
        await holder.leave(1)
        await other.hold(2, A, queue=False)

    @story("queue", "modes")
    async def test_who_does_not_queue_passes_nobody(self, stage: Stage) -> None:
        reader, writer, hasty = stage.callers("reader", "writer", "hasty")
        shared = A._replace(mode="shared")
        await reader.hold(1, shared)
        await writer.queue(1, A)
        expect(await hasty.enter(1, shared, queue=False), c.Busy)
        await reader.leave(1)
        await writer.holds(1)


async def repeated(
    stage: Stage, ask: Callable[[int], Coroutine[Any, Any, c.Reply]], kind: type[R]
) -> R:
    """Ask until the reply is of this kind; `ask` gets the number of the attempt, from 1 on.

    A client that judges the end of a span by an estimate of the store's clock may be late.
    """
    reply = await ask(1)
    for attempt in range(2, ATTEMPTS_MAX + 1):
        if isinstance(reply, kind):
            break
        await stage.pass_ms(SPAN_MS // 8)
        reply = await ask(attempt)
    return expect(reply, kind)


class BoundStories(Contract):
    @story("queue")
    async def test_max_hold_ends_a_claim_though_its_session_lives(self, stage: Stage) -> None:
        stuck, other = stage.callers("stuck", "other")
        await stuck.hold(1, A, max_hold_ms=SPAN_MS)
        await stuck.hold(2, B)
        queued = await other.queue(1, A)
        # A client may only have an estimate of the clock that ends the claim.
        assert 0 < queued.look_ms < 2 * SPAN_MS
        await stage.pass_ms(SPAN_MS)
        await stuck.renewed()
        await other.renewed(1)
        await repeated(stage, lambda _: other.look(1), c.Granted)
        assert expect(await stuck.look(1), c.Gone).reason
        await stuck.holds(2)
        expect(await stuck.leave(1), c.Gone)
        assert (await stuck.renewed()).matches

    @story("queue")
    async def test_max_hold_counts_from_the_grant(self, stage: Stage) -> None:
        holder, other = stage.callers("holder", "other")
        await holder.hold(1, A)
        await other.queue(1, A, max_hold_ms=SPAN_MS)
        await stage.pass_ms(SPAN_MS)
        await holder.leave(1)
        await other.holds(1)
        await stage.pass_ms(SPAN_MS)
        await holder.renewed()
        await repeated(stage, lambda _: other.look(1), c.Gone)

    @story("queue")
    async def test_a_closed_lock_is_granted_to_nobody(self, stage: Stage) -> None:
        holder, waiter, hasty = stage.callers("holder", "waiter", "hasty")
        await holder.hold(1, A)
        await waiter.queue(1, A)
        await holder.leave(1, close_ms=LONG_MS)
        queued = await waiter.waits(1)
        # A client may only have an estimate of the clock that ends the closing.
        assert 0 < queued.look_ms < 2 * LONG_MS
        expect(await hasty.enter(1, A, queue=False), c.Busy)
        view = await holder.inspect("lock", "a")
        assert (view.holder_count, view.waiting_count) == (0, 1)
        assert 0 < view.closed_ms < 2 * LONG_MS

    @story("queue")
    async def test_a_closed_lock_opens(self, stage: Stage) -> None:
        holder, waiter = stage.callers("holder", "waiter")
        await holder.hold(1, A)
        await waiter.queue(1, A)
        await holder.leave(1, close_ms=SPAN_MS)
        await stage.pass_ms(SPAN_MS)
        await waiter.renewed(1)
        await repeated(stage, lambda _: waiter.look(1), c.Granted)
        assert (await holder.inspect("lock", "a")).closed_ms == 0

    @story()
    async def test_lock_delay_follows_an_abnormal_loss_only(self, stage: Stage) -> None:
        gone, dead, other = stage.callers("gone", "dead", "other")
        await gone.hold(1, A, lock_delay_ms=LONG_MS)
        await gone.leave(1)
        await other.hold(1, A)
        await dead.hold(1, B, lock_delay_ms=LONG_MS)
        await other.send(c.Expel("dead", "its process died"))
        expect(await other.enter(2, B, queue=False), c.Busy)

    @story()
    async def test_lock_delay_ends(self, stage: Stage) -> None:
        dead, other = stage.callers("dead", "other")
        await dead.hold(1, A, lock_delay_ms=SPAN_MS)
        await other.open()
        await other.send(c.Expel("dead", "its process died"))
        await stage.pass_ms(SPAN_MS)
        await repeated(stage, lambda n: other.enter(n, A, queue=False), c.Granted)

    @pytest.mark.parametrize(
        "places",
        [
            (A, A),
            (A, A._replace(mode="shared")),
            (c.Place("lock", "a", "permit", 1, 1),),
            (c.Place("lock", "a", "nonsense"),),
            (c.Place("nonsense", "a", "exclusive"),),
            (c.Place("tree", "a", "update"),),
            (c.Place("semaphore", "a", "permit", 0, 4),),
            (c.Place("semaphore", "a", "permit", 5, 4),),
            (c.Place("semaphore", "a", "permit", 1, 0),),
        ],
    )
    @story("modes")
    async def test_a_claim_that_makes_no_sense_is_refused(
        self, stage: Stage, places: tuple[c.Place, ...]
    ) -> None:
        (caller,) = stage.callers("s")
        refused = expect(await caller.enter(1, *places), c.Refused)
        assert (refused.why, bool(refused.detail)) == (c.WHY_INVALID, True)
        assert await caller.claims() == ()

    @story()
    async def test_a_claim_on_nothing_is_refused(self, stage: Stage) -> None:
        (caller,) = stage.callers("s")
        assert expect(await caller.enter(1), c.Refused).why == c.WHY_INVALID
        assert await caller.claims() == ()

    @story()
    async def test_a_value_too_large_takes_nothing(self, stage: Stage) -> None:
        (caller,) = stage.callers("s")
        refused = expect(await caller.enter(1, A, value="é" * 2049), c.Refused)
        assert (refused.why, refused.value, refused.limit) == (c.WHY_TOO_LARGE, 4098, 4096)
        assert (await caller.inspect("lock", "a")).holder_count == 0
        await caller.hold(2, A, value="é" * 2048)

    @story()
    async def test_the_value_of_a_held_claim_can_be_changed(self, stage: Stage) -> None:
        (caller,) = stage.callers("s")
        await caller.hold(1, A, value="first")
        assert await caller.send(c.Proclaim("s", 1, "second")) == c.Done()
        (view,) = (await caller.inspect("lock", "a")).holders
        assert view.value == "second"
        refused = expect(await caller.send(c.Proclaim("s", 1, "x" * 4097)), c.Refused)
        assert refused.why == c.WHY_TOO_LARGE
        expect(await caller.send(c.Proclaim("s", 2, "third")), c.Gone)

    @story("queue")
    async def test_a_window_lets_nobody_in_from_the_grant_on(self, stage: Stage) -> None:
        """Not even after the holder has released: at most one run per window."""
        one, other = stage.callers("one", "other")
        await one.hold(1, ONCE, window_ms=LONG_MS)
        expect(await other.enter(1, ONCE, queue=False), c.Busy)
        await other.queue(2, ONCE)
        await one.leave(1)
        assert 0 < (await other.waits(2)).look_ms < 2 * LONG_MS

    @story("queue")
    async def test_a_window_ends(self, stage: Stage) -> None:
        one, other = stage.callers("one", "other")
        await one.hold(1, ONCE, window_ms=SPAN_MS)
        await other.queue(1, ONCE)
        await one.leave(1)
        await stage.pass_ms(SPAN_MS)
        await other.renewed(1)
        await repeated(stage, lambda _: other.look(1), c.Granted)

    @story("queue")
    async def test_a_claim_to_be_kept_is_told_when_others_want_it(self, stage: Stage) -> None:
        keeper, other = stage.callers("keeper", "other")
        assert not (await keeper.hold(1, A, block=1000)).wanted
        await other.queue(1, A)
        assert (await keeper.holds(1)).wanted
        await other.leave(1)
        assert not (await keeper.holds(1)).wanted

    @story()
    async def test_a_claim_can_be_adopted_by_another_actor(self, stage: Stage) -> None:
        one, other = stage.callers("one", "other")
        granted = await one.hold(1, A, actor="task-1")
        assert await one.send(c.Adopt("one", 1, "task-2")) == c.Done()
        (view,) = await one.claims()
        assert (view.actor, view.token) == ("task-2", granted.token)
        await other.open()
        expect(await other.send(c.Adopt("other", 1, "task-3")), c.Gone)


class RevokeStories(Contract):
    @story("queue", "revoke")
    async def test_a_holder_is_told_by_whom_and_why(self, stage: Stage) -> None:
        holder, waiter, admin = stage.callers("holder", "waiter", "admin")
        granted = await holder.hold(1, A)
        await waiter.queue(1, A)
        assert await admin.send(c.Revoke("holder", 1, "admin", "stuck")) == c.Done(found=True)
        assert (await waiter.holds(1)).token > granted.token
        gone = expect(await holder.look(1), c.Gone)
        assert gone.by == "admin"
        assert "stuck" in gone.reason
        assert (await holder.renewed()).matches
        assert expect(await holder.enter(1, A), c.Gone).by == "admin"
        assert expect(await holder.leave(1), c.Gone).by == "admin"
        assert await holder.leave(1) == c.Done(found=False)
        assert expect(await holder.enter(1, A), c.Refused).why == c.WHY_FINISHED
        await waiter.holds(1)

    @story("queue", "revoke")
    async def test_a_waiting_claim_can_be_revoked(self, stage: Stage) -> None:
        holder, waiter = stage.callers("holder", "waiter")
        await holder.hold(1, A)
        await waiter.queue(1, A)
        assert await holder.send(c.Revoke("waiter", 1, "admin", "no")) == c.Done(found=True)
        assert expect(await waiter.look(1), c.Gone).by == "admin"
        await holder.leave(1)
        expect(await waiter.look(1), c.Gone)
        assert (await holder.inspect("lock", "a")).holder_count == 0

    @story("revoke")
    async def test_only_the_claim_that_was_seen_is_revoked(self, stage: Stage) -> None:
        """Revoke works by claim, not by name: a later holder of the lock keeps it."""
        one, other = stage.callers("one", "other")
        await one.hold(1, A)
        await one.leave(1)
        await other.hold(1, A)
        assert await other.send(c.Revoke("one", 1, "admin", "late")) == c.Done(found=False)
        assert await other.send(c.Revoke("nobody", 1, "admin", "late")) == c.Done(found=False)
        await other.holds(1)
