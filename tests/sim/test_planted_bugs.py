"""The search finds what is there: each planted bug, within a minute."""

from __future__ import annotations

import itertools

import pytest

from lockfast.sim.planted import PLANTED, planted
from lockfast.sim.search import first_failure, try_seed

BUDGET_S = 60


def test_there_are_enough_of_them() -> None:
    names = [bug.name for bug in PLANTED]
    assert len(names) == len(set(names)) >= 20


@pytest.mark.parametrize("name", [bug.name for bug in PLANTED])
def test_it_is_found(name: str) -> None:
    with planted(name):
        finding = first_failure(itertools.count(1), BUDGET_S)
    assert finding is not None, f"{name!r} was not found within {BUDGET_S} s"
    # It was the bug, and not the schedule: without it the same seed is clean.
    assert first_failure([finding.seed], BUDGET_S) is None


def test_nothing_stays_planted() -> None:
    for bug in PLANTED:
        with planted(bug.name):
            pass
    for seed in range(5):
        assert try_seed(seed)[1] == []
