"""The short form of `./dev chaos`: a few faults on each store, with real servers and processes."""

from __future__ import annotations

from pathlib import Path

import pytest

from chaos.case import Case, Plan
from chaos.faults import MIX
from chaos.targets import TARGETS, Memory

SHORT = Plan(seconds=1.0, strikes=3, seed=7, hold_ms=4.0, pause_ms=4.0)


# tests/cluster/test_chaos.py covers the faults of a cluster.
@pytest.mark.parametrize("store", [name for name in TARGETS if name != "redis-cluster"])
def test_promises_are_kept_through_a_mix_of_faults(store: str, tmp_path: Path) -> None:
    with TARGETS[store]() as target:
        result = Case(target, MIX, SHORT, tmp_path).run()
    assert result.problems == [], "\n".join(result.problems)
    assert result.strikes >= 3
    assert result.grants > 0
    assert result.overlaps == 0


class Apart(Memory):
    """Workers that each have their own store, so that locks exclude nobody."""

    workers, lanes = 3, 1


def test_a_store_that_lets_two_in_is_found_out(tmp_path: Path) -> None:
    plan = Plan(seconds=2.0, seed=7, hold_ms=20.0, pause_ms=1.0)
    with Apart() as target:
        result = Case(target, "calm", plan, tmp_path).run()
    broken = {problem.partition(":")[0] for problem in result.problems}
    assert result.overlaps > 0
    assert result.refused > 0
    assert result.unfenced_lost > 0
    assert "exclusion" in broken
