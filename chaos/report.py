"""The output of a run: rows in a terminal, an HTML page with timelines, a table for the docs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import Final

from chaos.case import Result
from chaos.targets import NAMES
from lockfast.drawing.page import document
from lockfast.drawing.page import verdict as drawn_verdict
from lockfast.sim.checker import Grant, grants_of
from lockfast.sim.history import Entry
from lockfast.sim.timeline import svg

GRANTS_MAX: Final = 60
"""In one picture."""
BEFORE_US: Final = 500_000
PROBLEMS_MAX: Final = 20

HEADER: Final = (
    f"{'store':<15}{'fault':<15}{'strikes':>7}{'grants':>8}{'overlaps':>9}{'stale':>7}{'lost':>6}"
    f"{'outage':>9}{'back in':>9}  verdict"
)
LEGEND: Final = """\
strikes   how often the fault happened
grants    leases that their holders proved
overlaps  two proved holders at once
stale     stale writes that the fenced register refused
lost      updates that the unfenced register lost
outage    the longest time in which some lock was not entered
back in   from the repair until every lock had been entered again"""


def row(result: Result) -> str:
    """Return a row of the table."""
    return (
        f"{result.store:<15}{result.fault:<15}{result.strikes:>7}{result.grants:>8}"
        f"{result.overlaps:>9}{result.refused:>7}{result.unfenced_lost:>6}"
        f"{_seconds(result.outage_ms):>9}{_seconds(result.recovery_ms):>9}  {verdict(result)}"
    )


def verdict(result: Result) -> str:
    if result.problems:
        return f"BROKEN: {len(result.problems)}"
    return "kept" if result.promised else "kept (tokens and register; exclusion is not promised)"


def _seconds(ms: int) -> str:
    return f"{ms / 1000:.1f} s"


# ── the page ─────────────────────────────────────────────────────────────────────────


class Page:
    """The HTML page; it grows case by case, so that no history has to be kept."""

    def __init__(self, title: str) -> None:
        self._title = title
        self._results: list[Result] = []
        self._parts: list[str] = []

    def add(self, result: Result) -> None:
        self._results.append(result)
        anchor = f"{result.store}-{result.fault}"
        problems = "".join(
            f"<li><pre>{escape(problem)}</pre></li>" for problem in result.problems[:PROBLEMS_MAX]
        )
        self._parts.append(
            f'<h2 id="{anchor}">{escape(result.store)}: {escape(result.fault)}</h2>'
            f"<p>{escape(verdict(result))}. What calls ended with: {escape(_outcomes(result))}.</p>"
            f"<ul>{problems}</ul>{svg(window(result.entries))}"
        )

    def text(self, summary: str) -> str:
        broken = sum(bool(result.problems) for result in self._results)
        said = f"{broken} cases broke a promise." if broken else "All promises were kept."
        return document(
            self._title,
            f"<p>{escape(summary)}</p>{drawn_verdict(said, good=not broken)}{self._table()}"
            f"<pre>{escape(LEGEND)}</pre>{''.join(self._parts)}",
        )

    def _table(self) -> str:
        texts = "<th>store</th><th>fault</th>"
        names = ("strikes", "grants", "overlaps", "stale", "lost", "outage", "back in")
        head = texts + "".join(f'<th class="number">{name}</th>' for name in names)
        rows = "".join(map(self._row, self._results))
        return f'<div class="scroll"><table><tr>{head}<th>verdict</th></tr>{rows}</table></div>'

    @staticmethod
    def _row(result: Result) -> str:
        cells = (
            *(result.strikes, result.grants, result.overlaps, result.refused),
            *(result.unfenced_lost, _seconds(result.outage_ms), _seconds(result.recovery_ms)),
        )
        link = f'<a href="#{result.store}-{result.fault}">{escape(result.fault)}</a>'
        shown = "".join(f'<td class="number">{escape(str(cell))}</td>' for cell in cells)
        shown += f"<td>{escape(verdict(result))}</td>"
        kind = "broken" if result.problems else "kept"
        return f'<tr class="{kind}"><td>{escape(result.store)}</td><td>{link}</td>{shown}</tr>'


def _outcomes(result: Result) -> str:
    found = sorted(result.outcomes.items(), key=lambda item: -item[1])
    return ", ".join(f"{count} × {outcome}" for outcome, count in found) or "nothing"


def window(entries: Sequence[Entry]) -> list[Entry]:
    """Return the entries for a picture: one lock, from just before the first fault on."""
    start = next((e["at"] for e in entries if "fault" in e), 0) - BEFORE_US
    shown = [
        grant
        for grant in grants_of(entries)
        if grant.asked >= start
        and grant.places[0].name == NAMES[0]
        and grant.places[0].kind == "lock"
    ][:GRANTS_MAX]
    if not shown:
        return []
    ops = {grant.op for grant in shown}
    end = max(map(_end_of, shown))
    lanes = {grant.by for grant in shown}
    return [entry for entry in entries if _is_shown(entry, ops, lanes, start, end)]


def _end_of(grant: Grant) -> int:
    return min(grant.over, grant.answered or grant.asked) if grant.granted else grant.asked


def _is_shown(entry: Entry, ops: set[int], lanes: set[str], start: int, end: int) -> bool:
    if "op" in entry:
        return entry["op"] in ops or entry.get("of") in ops
    if not start <= entry["at"] <= end:
        return False
    if "write" in entry:
        return bool(entry["write"] == NAMES[0])
    if entry.get("fault") == "pause":
        return entry["on"] in lanes
    return "fault" in entry or "lives" in entry or "resumed" in entry


# ── the documentation ────────────────────────────────────────────────────────────────


def markdown(results: Iterable[Result]) -> str:
    """Return a Markdown table with a row for each case."""
    lines = [
        "| store | fault | faults | grants | two holders at once | stale writes refused | outage |",
        "|---|---|--:|--:|--:|--:|--:|",
    ]
    for result in results:
        overlaps = str(result.overlaps) if result.promised else f"{result.overlaps}\\*"
        broken = " **BROKEN**" if result.problems else ""
        cells = (
            *(result.store, result.fault, result.strikes, result.grants, overlaps),
            *(result.refused, f"{_seconds(result.outage_ms)}{broken}"),
        )
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join(lines) + "\n"
