"""The search finds each planted bug, within what one core runs in a minute."""

from __future__ import annotations

from contextlib import ExitStack

import pytest

from lockfast.core.lines import Lines
from lockfast.sim.search import first_failure, try_seed
from tests.sim.planted.bugs import Bug, MisfitError, bugs, planted, replace
from tests.sim.planted.hunt import hunt, known_seeds

pytestmark = pytest.mark.timeout(600)  # a minute of one core, on a machine that is shared

ENOUGH = {"memory": 20, "redis": 6, "etcd": 8, "sqlite": 6, "postgresql": 6, "zookeeper": 6}


@pytest.mark.parametrize("store", ENOUGH)
def test_there_are_enough_of_them(store: str) -> None:
    assert sum(bug.store == store for bug in bugs()) >= ENOUGH[store]


@pytest.mark.parametrize("bug", bugs(), ids=lambda bug: bug.name)
def test_it_is_found_by_its_promise(bug: Bug) -> None:
    failure = hunt(bug, known_seeds(bug))
    # It was the bug, and not the schedule: without the bug the same seed is clean.
    if failure.mixed:
        assert first_failure([failure.seed], bug.store) is None


def test_nothing_stays_planted() -> None:
    for bug in bugs():
        with planted(bug.name):
            pass
    for seed in range(5):
        assert try_seed(seed)[1] == []


def test_a_bug_that_does_not_fit_cannot_be_planted() -> None:
    with ExitStack() as stack:
        with pytest.raises(MisfitError, match="takes"):
            replace(stack, Lines, "stand", lambda self, claim: True)
        with pytest.raises(MisfitError, match="has no"):
            replace(stack, Lines, "sit", lambda self: True)
