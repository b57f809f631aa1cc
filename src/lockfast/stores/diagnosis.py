"""What a look at a store has found."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, NamedTuple

from lockfast.errors import StoreMisconfiguredError

Verdict = Literal["good", "note", "bad"]


class Diagnosis(NamedTuple):
    """One thing that was looked at."""

    what: str
    found: str
    verdict: Verdict = "good"
    advice: str = ""


def refuse_if_bad(label: str, findings: Iterable[Diagnosis]) -> None:
    """Raise StoreMisconfiguredError for what would break promises."""
    for finding in findings:
        if finding.verdict == "bad":
            raise StoreMisconfiguredError(label, f"{finding.what}: {finding.found}", finding.advice)
