"""The store behaves like the lock table, step by step, on thousands of random commands.

20,160 in all. Most are compared by the rows they leave: the reference's own code reads what the
tables contain. Some are compared through the store's own reads as well.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from lockfast.conformance.commands import compare
from tests.postgresql.stepping import ModelSteps, StoreSteps, reference
from tests.servers.postgresql import PostgresServer

STEPS = 240
SEEDS_READ = range(6)
SEEDS_BY_ROWS = range(6, 24)
STEPS_OF_MODEL = 60
SEEDS_OF_MODEL = range(100, 106)

Make = Callable[..., Callable[[], StoreSteps]]


@pytest.fixture
def making(server: PostgresServer) -> Iterator[Make]:
    """Return a function that makes subjects; each call closes the previous one."""
    made: list[StoreSteps] = []

    def maker(*, by_rows: bool) -> Callable[[], StoreSteps]:
        def make() -> StoreSteps:
            if made:
                made.pop().close()
            made.append(StoreSteps(server.url(), by_rows=by_rows))
            return made[-1]

        return make

    yield maker
    for subject in made:
        subject.close()


@pytest.mark.parametrize("seed", SEEDS_READ)
def test_store_and_table_agree(making: Make, seed: int) -> None:
    """The same replies, wakes, events and state after each command."""
    outcome = compare(making(by_rows=False), reference, seed, STEPS)
    assert len(outcome.script) == STEPS


@pytest.mark.parametrize("seed", SEEDS_BY_ROWS)
def test_rows_and_table_agree(making: Make, seed: int) -> None:
    """The same replies, wakes and events, and equivalent rows, after each command."""
    outcome = compare(making(by_rows=True), reference, seed, STEPS)
    assert len(outcome.script) == STEPS


@pytest.mark.parametrize("seed", SEEDS_OF_MODEL)
def test_store_and_table_agree_on_the_model(seed: int) -> None:
    """As above, over the simulator's PostgreSQL."""
    outcome = compare(ModelSteps, reference, seed, STEPS_OF_MODEL)
    assert len(outcome.script) == STEPS_OF_MODEL
