"""The search finds what is there: each planted bug, within what a core does in a minute."""

from __future__ import annotations

import pytest

from lockfast.sim.planted import PLANTED, planted
from lockfast.sim.search import first_failure, try_seed

SCHEDULES = 4000
"""What a core does in a minute, or less; counted, for a busy machine does fewer."""


def test_there_are_enough_of_them() -> None:
    names = [bug.name for bug in PLANTED]
    assert len(names) == len(set(names)) >= 20


@pytest.mark.parametrize("name", [bug.name for bug in PLANTED])
def test_it_is_found(name: str) -> None:
    with planted(name):
        finding = first_failure(range(1, SCHEDULES + 1))
    assert finding is not None, f"{name!r} was not found in {SCHEDULES} schedules"
    # It was the bug, and not the schedule: without it the same seed is clean.
    assert first_failure([finding.seed]) is None


def test_nothing_stays_planted() -> None:
    for bug in PLANTED:
        with planted(bug.name):
            pass
    for seed in range(5):
        assert try_seed(seed)[1] == []
