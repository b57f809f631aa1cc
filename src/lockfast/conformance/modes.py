"""Modes, by commands: readers and writers, trees, semaphores, conversions."""

from __future__ import annotations

import itertools

import pytest

from lockfast.conformance.callers import expect
from lockfast.conformance.harness import Contract, Stage, story
from lockfast.core import commands as c

LOCK_MODES = ("exclusive", "shared", "update")
TREE_MODES = ("exclusive", "shared", "intent_exclusive", "intent_shared")
TOGETHER = {
    frozenset({"shared"}),
    frozenset({"shared", "update"}),
    frozenset({"shared", "intent_shared"}),
    frozenset({"intent_shared"}),
    frozenset({"intent_exclusive"}),
    frozenset({"intent_shared", "intent_exclusive"}),
}
"""The modes that two claims may hold at the same time, deliberately stated again here."""

PAIRS = [
    *(("lock", *pair) for pair in itertools.product(LOCK_MODES, repeat=2) if len(set(pair)) > 1),
    ("lock", "shared", "shared"),
    ("lock", "update", "update"),
    *(("tree", *pair) for pair in itertools.product(TREE_MODES, repeat=2)),
    ("party", "shared", "shared"),
]


def lock(mode: str) -> c.Place:
    return c.Place("lock", "a", mode)


def permits(weight: int, limit: int) -> c.Place:
    return c.Place("semaphore", "p", "permit", weight, limit)


class ModeStories(Contract):
    @pytest.mark.parametrize(("kind", "first", "second"), PAIRS)
    @story("queue", "modes")
    async def test_which_modes_are_held_together(
        self, stage: Stage, kind: str, first: str, second: str
    ) -> None:
        one, other = stage.callers("one", "other")
        await one.hold(1, c.Place(kind, "a", first))
        reply = await other.enter(1, c.Place(kind, "a", second))
        if frozenset({first, second}) in TOGETHER:
            expect(reply, c.Granted)
        else:
            expect(reply, c.Queued)
            await one.leave(1)
            await other.holds(1)

    @pytest.mark.parametrize("kind", ["election", "once"])
    @story()
    async def test_kinds_that_are_always_exclusive(self, stage: Stage, kind: str) -> None:
        one, other = stage.callers("one", "other")
        place = c.Place(kind, "a", "exclusive")
        await one.hold(1, place)
        expect(await other.enter(1, place, queue=False), c.Busy)
        await one.leave(1)
        await other.hold(2, place, queue=False)

    @story("queue", "modes")
    async def test_a_writer_is_not_starved_by_later_readers(self, stage: Stage) -> None:
        reader, writer, later = stage.callers("reader", "writer", "later")
        await reader.hold(1, lock("shared"))
        await reader.hold(2, lock("shared"))
        await writer.queue(1, lock("exclusive"))
        await later.queue(1, lock("shared"))
        await reader.leave(1)
        await later.waits(1)
        await reader.leave(2)
        await writer.holds(1)
        await later.waits(1)
        await writer.leave(1)
        await later.holds(1)

    @story("queue", "modes")
    async def test_readers_in_a_row_are_granted_together(self, stage: Stage) -> None:
        writer, readers, last = stage.callers("writer", "readers", "last")
        await writer.hold(1, lock("exclusive"))
        for n in (1, 2, 3):
            await readers.queue(n, lock("shared"))
        await last.queue(1, lock("exclusive"))
        await readers.queue(4, lock("shared"))
        await writer.leave(1)
        tokens = [(await readers.holds(n)).token for n in (1, 2, 3)]
        assert len(set(tokens)) == 3, "each reader has its own token"
        await readers.waits(4)
        await last.waits(1)
        for n in (1, 2, 3):
            await readers.leave(n)
        assert (await last.holds(1)).token > max(tokens)

    @story("queue", "modes")
    async def test_who_waits_first_is_told_of_all_holders(self, stage: Stage) -> None:
        readers, writer = stage.callers("readers", "writer")
        for n in (1, 2, 3):
            await readers.hold(n, lock("shared"))
        queued = await writer.queue(1, lock("exclusive"))
        assert sorted(b.n for b in queued.ahead) == [1, 2, 3]


class SemaphoreStories(Contract):
    @story("queue", "modes")
    async def test_weights_add_up_to_at_most_the_limit(self, stage: Stage) -> None:
        one, other = stage.callers("one", "other")
        await one.hold(1, permits(2, 4))
        await one.hold(2, permits(1, 4))
        await other.queue(1, permits(2, 4))
        await one.leave(2)
        await other.holds(1)
        view = await one.inspect("semaphore", "p")
        assert (view.holder_count, view.limit) == (2, 4)

    @story("queue", "modes")
    async def test_a_large_request_is_not_starved_by_small_ones(self, stage: Stage) -> None:
        one, large, small = stage.callers("one", "large", "small")
        await one.hold(1, permits(1, 4))
        await large.queue(1, permits(4, 4))
        await small.queue(1, permits(1, 4))
        await one.leave(1)
        await large.holds(1)
        await small.waits(1)

    @story("modes")
    async def test_two_limits_are_refused(self, stage: Stage) -> None:
        one, other = stage.callers("one", "other")
        await one.hold(1, permits(1, 4))
        refused = expect(await other.enter(1, permits(1, 5)), c.Refused)
        assert (refused.why, refused.value, refused.limit) == (c.WHY_LIMIT_DIFFERS, 5, 4)
        await one.leave(1)
        await other.hold(2, permits(1, 5))

    @story("queue", "modes")
    async def test_a_raised_limit_lets_those_in_who_wait(self, stage: Stage) -> None:
        one, other = stage.callers("one", "other")
        await one.hold(1, permits(1, 1))
        await other.queue(1, permits(1, 1))
        await other.queue(2, permits(1, 1))
        assert await one.send(c.Resize("semaphore", "p", 2)) == c.Done(found=True)
        await other.holds(1)
        await other.waits(2)

    @story("queue", "modes")
    async def test_a_lowered_limit_affects_later_grants_only(self, stage: Stage) -> None:
        one, other = stage.callers("one", "other")
        for n in (1, 2, 3):
            await one.hold(n, permits(1, 3))
        await other.queue(1, permits(1, 3))
        assert await one.send(c.Resize("semaphore", "p", 1)) == c.Done(found=True)
        await one.leave(1)
        await one.leave(2)
        await other.waits(1)
        await one.holds(3)
        await one.leave(3)
        await other.holds(1)

    @story("modes")
    async def test_nothing_in_use_is_not_resized(self, stage: Stage) -> None:
        (caller,) = stage.callers("s")
        assert await caller.send(c.Resize("semaphore", "p", 2)) == c.Done(found=False)
        refused = expect(await caller.send(c.Resize("semaphore", "p", 0)), c.Refused)
        assert refused.why == c.WHY_INVALID


class ConversionStories(Contract):
    @story("modes")
    async def test_becoming_the_writer_gives_a_new_token_and_nothing_else_does(
        self, stage: Stage
    ) -> None:
        (caller,) = stage.callers("s")
        tokens = [(await caller.hold(1, lock("shared"))).token]
        for step, mode in enumerate(("update", "exclusive", "update", "shared", "exclusive"), 1):
            granted = expect(await caller.convert(1, step, mode), c.Granted)
            assert granted.mode == mode
            tokens.append(granted.token)
            assert (await caller.renewed()).matches
        first, second, third = sorted(set(tokens))
        assert tokens == [first, first, second, second, second, third]

    @story("queue", "modes")
    async def test_an_upgrade_waits_for_the_readers_and_keeps_its_mode(self, stage: Stage) -> None:
        updater, reader, later = stage.callers("updater", "reader", "later")
        granted = await updater.hold(1, lock("update"))
        await reader.hold(1, lock("shared"))
        queued = expect(await updater.convert(1, 1, "exclusive"), c.Queued)
        assert [b.session for b in queued.ahead] == ["reader"]
        (view,) = [v for v in await updater.claims() if v.n == 1]
        assert (view.state, view.wants, view.token) == ("holding", "exclusive", granted.token)
        await later.queue(1, lock("shared"))
        await reader.leave(1)
        assert (await updater.holds(1)).mode == "exclusive"
        assert (await updater.holds(1)).token > granted.token
        await later.waits(1)
        await updater.leave(1)
        await later.holds(1)

    @story("queue", "modes")
    async def test_an_upgrade_goes_before_those_who_wait(self, stage: Stage) -> None:
        updater, reader, writer = stage.callers("updater", "reader", "writer")
        await updater.hold(1, lock("update"))
        await reader.hold(1, lock("shared"))
        await writer.queue(1, lock("exclusive"))
        expect(await updater.convert(1, 1, "exclusive"), c.Queued)
        await reader.leave(1)
        assert (await updater.holds(1)).mode == "exclusive"
        await writer.waits(1)

    @story("queue", "modes")
    async def test_two_readers_who_both_want_to_write_are_told_at_once(self, stage: Stage) -> None:
        one, other = stage.callers("one", "other")
        await one.hold(1, lock("shared"))
        await other.hold(1, lock("shared"))
        expect(await one.convert(1, 1, "exclusive"), c.Queued)
        refused = expect(await other.convert(1, 1, "exclusive"), c.Refused)
        assert refused.why == c.WHY_DEADLOCK
        assert "owner of one" in refused.detail
        assert (await other.holds(1)).mode == "shared"
        await other.leave(1)
        assert (await one.holds(1)).mode == "exclusive"

    @story("queue", "modes")
    async def test_a_reader_beside_an_updater_cannot_upgrade(self, stage: Stage) -> None:
        updater, reader = stage.callers("updater", "reader")
        await updater.hold(1, lock("update"))
        await reader.hold(1, lock("shared"))
        for step, mode in enumerate(("update", "exclusive"), 1):
            refused = expect(await reader.convert(1, step, mode), c.Refused)
            assert refused.why == c.WHY_DEADLOCK
        expect(await updater.convert(1, 1, "exclusive"), c.Queued)

    @story("queue", "modes")
    async def test_a_conversion_given_up_leaves_the_granted_mode(self, stage: Stage) -> None:
        updater, reader, later = stage.callers("updater", "reader", "later")
        granted = await updater.hold(1, lock("update"))
        await reader.hold(1, lock("shared"))
        expect(await updater.convert(1, 1, "exclusive"), c.Queued)
        await later.queue(1, lock("shared"))
        back = expect(await updater.convert(1, 2, "update"), c.Granted)
        assert (back.mode, back.token) == ("update", granted.token)
        await later.holds(1)

    @story("modes")
    async def test_a_conversion_not_to_be_had_now_changes_nothing(self, stage: Stage) -> None:
        updater, reader = stage.callers("updater", "reader")
        await updater.hold(1, lock("update"))
        await reader.hold(1, lock("shared"))
        expect(await updater.convert(1, 1, "exclusive", queue=False), c.Busy)
        assert (await updater.holds(1)).mode == "update"
        await reader.hold(2, lock("shared"))

    @story("modes")
    async def test_a_late_conversion_cannot_undo_a_newer_one(self, stage: Stage) -> None:
        (caller,) = stage.callers("s")
        await caller.hold(1, lock("shared"))
        expect(await caller.convert(1, 2, "exclusive"), c.Granted)
        refused = expect(await caller.convert(1, 1, "shared"), c.Refused)
        assert refused.why == c.WHY_FINISHED
        again = expect(await caller.convert(1, 2, "exclusive"), c.Granted)
        assert again.token == caller.account[1]
        assert (await caller.holds(1)).mode == "exclusive"

    @story("queue", "modes")
    async def test_a_downgrade_lets_readers_in(self, stage: Stage) -> None:
        writer, reader = stage.callers("writer", "reader")
        granted = await writer.hold(1, lock("exclusive"))
        await reader.queue(1, lock("shared"))
        down = expect(await writer.convert(1, 1, "shared"), c.Granted)
        assert down.token == granted.token
        await reader.holds(1)

    @story("modes", "several")
    async def test_what_cannot_be_converted_is_refused(self, stage: Stage) -> None:
        (caller,) = stage.callers("s")
        await caller.hold(1, c.Place("tree", "t", "shared"))
        await caller.hold(2, lock("shared"), c.Place("lock", "b", "shared"))
        await caller.hold(3, c.Place("lock", "c", "shared"))
        for n, mode in ((1, "exclusive"), (2, "exclusive"), (3, "permit")):
            refused = expect(await caller.convert(n, 1, mode), c.Refused)
            assert refused.why == c.WHY_INVALID
            await caller.holds(n)
        expect(await caller.convert(9, 1, "exclusive"), c.Gone)
