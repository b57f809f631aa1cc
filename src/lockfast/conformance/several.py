"""Claims with several places, by commands: all or nothing, and breaking deadlocks."""

from __future__ import annotations

from lockfast.conformance.callers import expect
from lockfast.conformance.harness import Contract, Stage, story
from lockfast.core import commands as c
from lockfast.errors import UnsupportedError


def places(names: str, mode: str = "exclusive") -> tuple[c.Place, ...]:
    return tuple(c.Place("lock", name, mode) for name in names)


class SeveralStories(Contract):
    @story("several", "queue")
    async def test_it_holds_nothing_until_it_can_hold_everything(self, stage: Stage) -> None:
        one, both = stage.callers("one", "both")
        await one.hold(1, *places("a"))
        await both.queue(1, *places("ab"))
        view = await one.inspect("lock", "b")
        assert (view.holder_count, view.waiting_count) == (0, 1)
        assert both.account == {1: 0}
        await one.leave(1)
        granted = await both.holds(1)
        assert granted.token > one.account.get(1, 0)
        assert granted.mode == ""
        for name in "ab":
            (holder,) = (await one.inspect("lock", name)).holders
            assert (holder.session, holder.token) == ("both", granted.token)

    @story("several")
    async def test_leaving_frees_every_place(self, stage: Stage) -> None:
        both, one = stage.callers("both", "one")
        await both.hold(1, *places("abc"))
        await both.leave(1)
        for n, name in enumerate("abc", 1):
            await one.hold(n, *places(name))

    @story("several")
    async def test_its_token_is_above_the_last_of_each(self, stage: Stage) -> None:
        one, both = stage.callers("one", "both")
        tokens = []
        for n, name in enumerate("ab", 1):
            tokens.append((await one.hold(n, *places(name))).token)
            await one.leave(n)
        assert (await both.hold(1, *places("ba"))).token > max(tokens)

    @story("several", "queue")
    async def test_opposite_orders_do_not_deadlock(self, stage: Stage) -> None:
        callers = stage.callers(*(f"s{i}" for i in range(6)))
        for i, caller in enumerate(callers):
            await caller.enter(1, *places(("ab", "ba", "bca", "cab", "ca", "ac")[i]))
        for _ in callers:
            holding = [caller for caller in callers if isinstance(await caller.look(1), c.Granted)]
            assert holding, "deadlock: no claim is granted"
            await holding[0].leave(1)

    @story("several", "queue")
    async def test_a_reservation_is_passed_by_nobody_who_came_later(self, stage: Stage) -> None:
        one, both, later = stage.callers("one", "both", "later")
        await one.hold(1, *places("a"))
        await both.queue(1, *places("ab"))
        await later.queue(1, *places("b"))
        expect(await later.enter(2, *places("b"), queue=False), c.Busy)
        await later.hold(3, *places("c"))
        await one.leave(1)
        await both.holds(1)
        await later.waits(1)

    @story("several", "queue", "priority")
    async def test_a_reservation_is_taken_back_by_one_with_a_head_start(self, stage: Stage) -> None:
        one, both, ahead = stage.callers("one", "both", "ahead")
        await one.hold(1, *places("a"))
        await both.queue(1, *places("ab"))
        await ahead.hold(1, *places("b"), priority=1, head_start_ms=60_000)
        await one.leave(1)
        await both.waits(1)
        await ahead.leave(1)
        await both.holds(1)

    @story("several", "queue")
    async def test_one_that_gives_up_frees_its_reservations(self, stage: Stage) -> None:
        one, both, later = stage.callers("one", "both", "later")
        await one.hold(1, *places("a"))
        await both.queue(1, *places("ab"))
        await later.queue(1, *places("b"))
        await both.leave(1)
        await later.holds(1)

    @story("several", "queue", "modes")
    async def test_kinds_and_modes_may_be_mixed(self, stage: Stage) -> None:
        one, mixed = stage.callers("one", "mixed")
        wanted = (
            c.Place("lock", "a", "shared"),
            c.Place("semaphore", "p", "permit", 2, 3),
            c.Place("tree", "t", "intent_exclusive"),
            c.Place("tree", "t/x", "exclusive"),
        )
        await one.hold(1, c.Place("semaphore", "p", "permit", 2, 3))
        await one.hold(2, c.Place("lock", "a", "shared"))
        await mixed.queue(1, *wanted)
        await one.leave(1)
        await mixed.holds(1)
        assert (await one.inspect("tree", "t/x")).holder_count == 1

    @story()
    async def test_no_more_places_than_declared(self, stage: Stage) -> None:
        (caller,) = stage.callers("s")
        most = tuple(c.Place("lock", f"n{i}", "exclusive") for i in range(stage.can.several))
        one_more = c.Place("lock", "more", "exclusive")
        try:
            reply = await caller.enter(1, *most, one_more)
        except UnsupportedError:
            await caller.open()
        else:
            assert expect(reply, c.Refused).why == c.WHY_INVALID
        assert await caller.claims() == ()
        await caller.hold(2, *most)

    @story("several", "queue")
    async def test_who_waits_for_several_is_told_whom_for(self, stage: Stage) -> None:
        one, other, both = stage.callers("one", "other", "both")
        await one.hold(1, *places("a"))
        await other.hold(1, *places("b"))
        queued = await both.queue(1, *places("ab"))
        assert {b.session for b in queued.ahead} == {"one", "other"}
        await other.leave(1)
        assert {b.session for b in (await both.waits(1)).ahead} == {"one"}


class BreakStories(Contract):
    """Two sessions hold one lock each and wait for the other's."""

    @story("queue")
    async def test_the_victim_leaves_only_if_the_cycle_still_stands(self, stage: Stage) -> None:
        one, other = stage.callers("one", "other")
        await one.hold(1, *places("a"))
        await other.hold(1, *places("b"))
        await one.queue(2, *places("b"))
        await other.queue(2, *places("a"))
        cycle = tuple(
            c.Witness(session, n, held)
            for session in ("one", "other")
            for n, held in ((1, True), (2, False))
        )
        wrong = (*cycle, c.Witness("one", 2, True))
        for witnesses in (wrong, (*cycle, c.Witness("one", 3, False))):
            command = c.Break("other", 2, witnesses, detail="a cycle")
            assert await one.send(command) == c.Done(found=False)
            await other.waits(2)
        assert await one.send(c.Break("other", 2, cycle, detail="a cycle")) == c.Done()
        gone = expect(await other.look(2), c.Gone)
        assert (gone.reason, gone.by) == (c.WHY_DEADLOCK, "a cycle")
        await other.leave(1)
        await one.holds(2)

    @story("queue", "several")
    async def test_one_who_is_waited_for_may_pass_a_reservation(self, stage: Stage) -> None:
        """A claim holds what another one waits for, and waits for that one's reservation."""
        one, both = stage.callers("one", "both")
        await one.hold(1, *places("a"))
        await both.queue(1, *places("ab"))
        await one.queue(2, *places("b"))
        witnesses = (
            c.Witness("one", 1, True),
            c.Witness("one", 2, False),
            c.Witness("both", 1, False),
        )
        command = c.Break("one", 2, witnesses, ahead_of=("both", 1))
        assert await both.send(command) == c.Done()
        await one.holds(2)
        await both.waits(1)
        await one.leave(2)
        await one.leave(1)
        await both.holds(1)

    @story("queue", "modes")
    async def test_a_conversion_broken_off_keeps_its_mode(self, stage: Stage) -> None:
        one, other = stage.callers("one", "other")
        await one.hold(1, *places("a", "update"))
        await other.hold(1, *places("a", "shared"))
        expect(await one.convert(1, 1, "exclusive"), c.Queued)
        witnesses = (c.Witness("one", 1, False), c.Witness("other", 1, True))
        assert await other.send(c.Break("one", 1, witnesses, detail="a cycle")) == c.Done()
        assert (await one.holds(1)).mode == "update"
        stored = expect(await one.send(c.Claims("one")), c.ClaimsReply)
        assert [claim.reason for claim in stored.claims] == ["a cycle"], (
            "the claim records the cycle"
        )
        await other.hold(2, *places("a", "shared"))
