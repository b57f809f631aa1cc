"""The page of `lockfast report`: who held and waited for which lock, and what was lost."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Final, NamedTuple

from lockfast.core.wording import counted
from lockfast.drawing.page import document, legend, table, verdict
from lockfast.drawing.shapes import span_label
from lockfast.drawing.timeline import LEGEND
from lockfast.telemetry.pictures import lock_timeline, title_of
from lockfast.telemetry.sketch import Sketch
from lockfast.telemetry.spans import Span

LOCKS_DRAWN: Final = 25
"""How many locks, the busiest ones, get a timeline."""
SPANS_DRAWN: Final = 600
"""Claims drawn per lock, the latest ones."""
ROWS_MAX: Final = 20


class LockSummary(NamedTuple):
    """One lock over the whole report."""

    kind: str
    name: str
    spans: list[Span]

    @property
    def grants(self) -> int:
        return sum(span.granted is not None for span in self.spans)

    @property
    def contended(self) -> int:
        return sum(span.asked is not None for span in self.spans)

    @property
    def losses(self) -> int:
        return sum(span.was_lost for span in self.spans)

    @property
    def held(self) -> float:
        return sum(span.held or 0.0 for span in self.spans)

    @property
    def waited(self) -> float:
        return sum(span.waited for span in self.spans)


def report_page(spans: Sequence[Span], *, title: str, source: str) -> str:
    """Return the whole page."""
    times = [
        at for span in spans for at in (span.asked, span.granted, span.ended) if at is not None
    ]
    if not times:
        return document(title, f"<p>{escape(source)}</p><p>No events.</p>")
    start, end = min(times), max(times)
    locks = summaries(spans)
    parts = [
        f"<p>{escape(source)}</p>",
        _verdict(spans, end - start, len(locks)),
        "<h2>Busiest locks</h2>",
        _busiest(locks),
        "<h2>Timeline</h2>",
        legend(LEGEND),
        *(_timeline(lock, start, end) for lock in locks[:LOCKS_DRAWN]),
        _rest(len(locks)),
        "<h2>Longest waits</h2>",
        _waits(spans, start),
        "<h2>Losses</h2>",
        _losses(spans, start),
    ]
    return document(title, "".join(parts))


def summaries(spans: Sequence[Span]) -> list[LockSummary]:
    """Return the locks, those waited for and held the longest first."""
    by_lock: dict[tuple[str, str], list[Span]] = {}
    for span in spans:
        by_lock.setdefault((span.kind, span.name), []).append(span)
    locks = [LockSummary(kind, name, found) for (kind, name), found in by_lock.items()]
    return sorted(locks, key=lambda lock: (-lock.waited, -lock.held, lock.name))


def _verdict(spans: Sequence[Span], seconds: float, locks: int) -> str:
    lost = sum(span.was_lost for span in spans)
    gave_up = sum(span.how == "gave_up" for span in spans)
    granted = sum(span.granted is not None for span in spans)
    text = (
        f"{counted(locks, 'lock')}, {counted(granted, 'grant')} in {span_label(seconds)}; "
        f"{counted(lost, 'lease')} lost, {counted(gave_up, 'acquire')} gave up"
    )
    return verdict(text, good=not lost)


def _busiest(locks: Sequence[LockSummary]) -> str:
    rows = []
    for lock in locks[:ROWS_MAX]:
        waits = Sketch()
        for span in lock.spans:
            if span.granted is not None:
                waits.add(span.waited)
        p95 = waits.percentile(0.95)
        rows.append(
            [
                title_of(lock.kind, lock.name),
                str(lock.grants),
                f"{lock.contended / max(1, len(lock.spans)):.0%}",
                span_label(p95) if p95 is not None else "-",
                span_label(lock.waited),
                span_label(lock.held),
                str(lock.losses),
            ]
        )
    header = ["lock", "grants", "contended", "p95 wait", "waited in all", "held in all", "lost"]
    return table(header, rows, numbers=range(1, 7))


def _timeline(lock: LockSummary, start: float, end: float) -> str:
    drawn = sorted(lock.spans, key=lambda span: _begin(span, start))[-SPANS_DRAWN:]
    picture, _ = lock_timeline(lock.kind, lock.name, drawn, start, end)
    return f'<div class="scroll">{picture}</div>'


def _begin(span: Span, start: float) -> float:
    known = [at for at in (span.asked, span.granted) if at is not None]
    return min(known) if known else start


def _rest(locks: int) -> str:
    more = locks - LOCKS_DRAWN
    return f"<p>{more} more locks are not drawn.</p>" if more > 0 else ""


def _waits(spans: Sequence[Span], start: float) -> str:
    longest = sorted((span for span in spans if span.waited), key=lambda span: -span.waited)
    if not longest:
        return "<p>Nobody waited.</p>"
    rows = [
        [
            span.name,
            span.owner,
            span_label(span.waited),
            f"+{span_label(_begin(span, start) - start)}",
            "granted" if span.granted is not None else span.how.replace("_", " "),
        ]
        for span in longest[:ROWS_MAX]
    ]
    return table(["lock", "owner", "waited", "from", "outcome"], rows, numbers=(2, 3))


def _losses(spans: Sequence[Span], start: float) -> str:
    lost = [span for span in spans if span.was_lost]
    if not lost:
        return "<p>No lease was lost.</p>"
    rows = [
        [
            span.name,
            span.owner,
            str(span.token or "-"),
            f"+{span_label((span.ended or start) - start)}",
            span_label(span.held or 0.0),
            span.outcome,
        ]
        for span in lost[-ROWS_MAX:]
    ]
    header = ["lock", "owner", "token", "at", "held for", "why"]
    return table(header, rows, numbers=(3, 4))
