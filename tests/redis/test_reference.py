"""The scripts behave like the lock table, step by step, on thousands of random commands."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from lockfast.conformance.commands import compare
from lockfast.core.memory_rows import MemoryRows
from lockfast.core.table import Table
from tests.redis.stepping import ModelSteps, ScriptSteps
from tests.servers.redis import RedisServer

STEPS = 220
SEEDS = range(12)
SEEDS_OF_MODEL = range(100, 106)
STEPS_OF_MODEL = 60


@pytest.fixture
def make_subject(server: RedisServer) -> Iterator[Callable[[], ScriptSteps]]:
    made: list[ScriptSteps] = []

    def make() -> ScriptSteps:
        made.append(ScriptSteps(server.url()))
        return made[-1]

    yield make
    for subject in made:
        subject.close()


@pytest.mark.parametrize("seed", SEEDS)
def test_scripts_and_table_agree(make_subject: Callable[[], ScriptSteps], seed: int) -> None:
    """30 × 220 commands: the same replies, wakes, events and state after each."""
    outcome = compare(make_subject, lambda: Table(MemoryRows()), seed, STEPS)
    assert len(outcome.script) == STEPS


@pytest.mark.parametrize("seed", SEEDS_OF_MODEL)
def test_scripts_and_table_agree_on_the_model(seed: int) -> None:
    """As above, over the simulator's Redis."""
    outcome = compare(ModelSteps, lambda: Table(MemoryRows()), seed, STEPS_OF_MODEL)
    assert len(outcome.script) == STEPS_OF_MODEL
