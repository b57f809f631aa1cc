"""Eight processes continue while primaries fail over and slots move."""

from __future__ import annotations

from pathlib import Path

import pytest

from chaos.case import Case, Plan
from chaos.targets import Cluster

SHORT = Plan(seconds=1.0, strikes=3, seed=11, hold_ms=4.0, pause_ms=4.0)


@pytest.mark.parametrize("fault", ["reshard", "promote"])
def test_eight_processes_go_on(fault: str, tmp_path: Path) -> None:
    """Moving slots breaks no promise; a failover may lose grants, but tokens rise."""
    with Cluster() as target:
        result = Case(target, fault, SHORT, tmp_path).run()
    assert result.problems == [], "\n".join(result.problems)
    assert result.strikes >= 3
    assert result.grants > 0
    if fault == "reshard":
        assert result.overlaps == 0
