"""The table compared with its model on random commands: every reply and everything readable.

A failure prints its seed and the shortest script that still fails; `replay` runs it.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from lockfast.conformance.commands import (
    PROFILES,
    MismatchError,
    compare,
    replay,
    shrink,
)
from lockfast.core import commands as c
from lockfast.core import rows as r
from lockfast.core.memory_rows import MemoryRows
from lockfast.core.table import Limits, Table
from lockfast.sim.model import Model, ModelLimits
from lockfast.sim.promises import Step
from tests.core.table_driver import AuditedTable, CopyingRows

LIMITS = Limits(waiting_max=5, claims_max=6, places_max=5, text_max=64)
STEPS = 150


def table() -> Table:
    return AuditedTable(MemoryRows(), LIMITS)


def copying_table() -> Table:
    return Table(CopyingRows(), LIMITS)


def model() -> Model:
    return Model(ModelLimits(*LIMITS))


@pytest.mark.parametrize("first", range(0, 132, 12))
def test_table_answers_as_its_model(first: int) -> None:
    """20,000 commands together with the tests below; each item runs two scripts of each small
    world."""
    for seed in range(first, first + 12):
        compare(table, model, seed, STEPS)


def portions(size: int) -> tuple[Callable[[], Table], Callable[[], Model]]:
    """A table and a model whose ended sessions lose this many places per step."""
    limits = LIMITS._replace(ended_per_step=size)
    return lambda: AuditedTable(MemoryRows(), limits), lambda: Model(ModelLimits(*limits))


@pytest.mark.parametrize("first", [5_000, 5_018])
def test_sessions_end_in_portions_as_in_the_model(first: int) -> None:
    """5,400 commands: with one to three places per step, ending overlaps with everything else."""
    for seed in range(first, first + 18):
        compare(*portions(1 + seed % 3), seed, STEPS)


@pytest.mark.parametrize("first", [1_000, 1_006])
def test_table_needs_nothing_of_its_rows_but_what_it_put(first: int) -> None:
    """1,800 commands over rows that return copies, as a database does."""
    for seed in range(first, first + 6):
        compare(copying_table, model, seed, STEPS)


@pytest.mark.parametrize("seed", range(2_000, 2_006))
def test_when_all_has_ended_nothing_is_left(seed: int) -> None:
    """After every session has ended and been forgotten, only the row of the shard is left."""
    outcome = compare(table, model, seed, STEPS)
    subject = outcome.subject
    assert isinstance(subject, Table)
    now_ms, wall_us = outcome.script[-1][1:]
    listed, _ = subject.apply(c.Sessions(), now_ms, wall_us)
    assert isinstance(listed, c.SessionsReply)
    for session in listed.sessions:
        subject.apply(c.Close(session.session), now_ms, wall_us)
    for _ in range(3):
        now_ms += 600_001
        subject.apply(c.Expel("nobody", "time passes"), now_ms, wall_us)
    assert isinstance(subject.rows, MemoryRows)
    left = subject.rows.scan("", "\U0010ffff", 1_000_000)
    assert [key for key, _ in left] == [r.META_KEY], f"seed {seed}"


def test_every_kind_of_answer_is_tried() -> None:
    """The random commands produce every kind of reply within a few scripts of each world."""
    answers: set[str] = set()
    for seed in range(3_000, 3_000 + len(PROFILES)):
        answers |= compare(table, model, seed, STEPS).replies.keys()
    kinds = "Done Granted Queued Busy Refused Gone Ended Renewed ClaimsReply ResourceView"
    assert answers == {*kinds.split(), "ListingReply", "SessionsReply", "EventsReply"}


class Forgetful(Table):
    """A table that grants a claim before the one ahead of it."""

    def _could_hold(self, resource: r.ResourceRow, place: c.Place, rank: str) -> bool:
        return resource.holders == 0


def test_a_planted_mistake_is_found_and_told_in_few_commands() -> None:
    """A failure names its seed, and its script cannot be shortened further."""
    with pytest.raises(MismatchError, match=r"seed 1 .*\nthe shortest script") as found:
        compare(lambda: Forgetful(MemoryRows(), LIMITS), model, 1, STEPS)
    script = [line for line in str(found.value).splitlines() if line.startswith("    Step(")]
    assert 2 <= len(script) <= 4


def test_shrinking_leaves_only_what_is_needed() -> None:
    """Of a hundred steps, only the two that fail together are left."""
    script = [Step(c.Close(f"s{i}"), i, i) for i in range(100)]

    def fails(steps: object) -> bool:
        assert isinstance(steps, list)
        return script[17] in steps and script[80] in steps

    assert shrink(script, fails) == [script[17], script[80]]


def test_a_script_can_be_replayed() -> None:
    """The commands that `compare` ran are a list of plain values that can be run again."""
    script = compare(table, model, 4, 20).script
    replay(table, model, eval(repr(script), {**vars(c), "Step": Step}))
