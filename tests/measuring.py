"""Values measured by tests and printed at the end of the run; no test depends on durations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

Measured = Callable[[str, float], None]


@pytest.fixture
def measured(record_property: Callable[[str, object], None]) -> Measured:
    """Record a duration in milliseconds, to be printed at the end of the run."""
    return lambda what, ms: record_property(f"measured {what}", f"{ms:.1f} ms")


def pytest_terminal_summary(terminalreporter: Any) -> None:
    found = [
        (name.removeprefix("measured "), value)
        for report in terminalreporter.stats.get("passed", [])
        if report.when == "call"
        for name, value in report.user_properties
        if name.startswith("measured ")
    ]
    if found:
        terminalreporter.section("measured")
        for what, span in found:
            terminalreporter.line(f"{span:>12}  {what}")
