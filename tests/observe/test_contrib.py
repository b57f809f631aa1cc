"""The shipped dashboard and alert rules use metrics and labels that exist."""

from __future__ import annotations

import json
import re
import runpy
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]

from lockfast.telemetry.measures import HISTOGRAM, MEASURES
from tests.observe.promql import Checker, PromQLError, Series

ROOT = Path(__file__).resolve().parents[2]
CONTRIB = ROOT / "contrib"


def known() -> dict[str, Series]:
    found: dict[str, Series] = {}
    for measure in MEASURES:
        labels = frozenset(measure.labels)
        if measure.kind == HISTOGRAM:
            found[f"{measure.name}_bucket"] = Series(labels | {"le"})
            found[f"{measure.name}_sum"] = found[f"{measure.name}_count"] = Series(labels)
        else:
            found[measure.name] = Series(labels)
    return found


def alerts() -> list[dict[str, Any]]:
    rules = yaml.safe_load((CONTRIB / "prometheus" / "alerts.yml").read_text())
    return [rule for group in rules["groups"] for rule in group["rules"]]


def panels() -> list[dict[str, Any]]:
    board = json.loads((CONTRIB / "grafana" / "lockfast.json").read_text())
    return [panel for panel in board["panels"] if panel["type"] != "row"]


@pytest.mark.parametrize("rule", alerts(), ids=lambda rule: str(rule["alert"]))
def test_alerts(rule: dict[str, Any]) -> None:
    labels = Checker(rule["expr"], known()).check()
    assert rule["labels"]["severity"] in ("page", "ticket")
    for text in rule["annotations"].values():
        assert set(re.findall(r"\$labels\.(\w+)", text)) <= labels
    assert set(rule) <= {"alert", "expr", "for", "labels", "annotations"}


@pytest.mark.parametrize("panel", panels(), ids=lambda panel: str(panel["title"]))
def test_panels(panel: dict[str, Any]) -> None:
    for target in panel["targets"]:
        labels = Checker(target["expr"], known()).check()
        assert set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"])) <= labels


def test_every_metric_is_on_the_dashboard() -> None:
    text = (CONTRIB / "grafana" / "lockfast.json").read_text()
    assert [measure.name for measure in MEASURES if measure.name not in text] == []


def test_panels_do_not_overlap() -> None:
    taken: set[tuple[int, int]] = set()
    board = json.loads((CONTRIB / "grafana" / "lockfast.json").read_text())
    for panel in board["panels"]:
        at = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(at["x"], at["x"] + at["w"])
            for y in range(at["y"], at["y"] + at["h"])
        }
        assert at["x"] + at["w"] <= 24
        assert not cells & taken
        taken |= cells


def test_the_dashboard_is_what_its_script_writes() -> None:
    made = runpy.run_path(str(CONTRIB / "grafana" / "build.py"))["dashboard"]()
    assert json.loads((CONTRIB / "grafana" / "lockfast.json").read_text()) == made


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ("lockfast_locks_hold > 0", "no metric"),
        ('lockfast_locks_held{lock="a"}', "no label"),
        ("sum by (reason) (lockfast_locks_held)", "no label"),
        (
            "histogram_quantile(0.9, sum by (store) (lockfast_hold_seconds_count))",
            "needs the label",
        ),
        ("rate(lockfast_deadlocks_total[5m]", "too early"),
        ("lockfast_locks_held / lockfast_store_up", "cannot be combined"),
        ("increase(1, lockfast_deadlocks_total[5m])", "takes 1"),
        ("lockfast_locks_held ? 1", "cannot be read"),
    ],
)
def test_mistakes_are_found(wrong: str, why: str) -> None:
    with pytest.raises(PromQLError, match=why):
        Checker(wrong, known()).check()
