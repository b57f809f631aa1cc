"""The page of `lockfast report`: who held and waited for which lock, and what was lost."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape
from typing import Final, NamedTuple

from lockfast.drawing import BAD, COLOURS, Scale, document, legend, span_label, table, time_axis
from lockfast.telemetry.sketch import Sketch
from lockfast.telemetry.spans import Span

LOCKS_DRAWN: Final = 25
"""The busiest locks get a timeline."""
SPANS_DRAWN: Final = 600
"""Claims drawn per lock, the latest ones."""
LANES_MAX: Final = 9
ROWS_MAX: Final = 20
_LEFT: Final = 150
_WIDTH: Final = 1030
_LANE: Final = 18
_TOP: Final = 30


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
        legend(
            [
                "bar: a lease, with its token when you point at it",
                "dashed: waiting",
                "red end: the lease was lost",
                "red ring: gave up",
            ]
        ),
        *(_timeline(lock, start, end) for lock in locks[:LOCKS_DRAWN]),
        _rest(len(locks)),
        "<h2>Longest waits</h2>",
        _waits(spans, start),
        "<h2>Losses</h2>",
        _losses(spans, start),
    ]
    return document(title, "".join(parts))


def summaries(spans: Sequence[Span]) -> list[LockSummary]:
    """Return the locks, those first that were waited for and held the longest."""
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
        f"{locks} locks, {granted} grants in {span_label(seconds)}; "
        f"{lost} leases lost, {gave_up} acquires gave up"
    )
    return f'<p class="verdict {"broken" if lost else "good"}">{text}</p>'


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
                lock.name if lock.kind == "lock" else f"{lock.kind} {lock.name}",
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
    scale = Scale(start, end, _LEFT, _WIDTH)
    lanes = _lanes(drawn, start, end)
    height = _TOP + _LANE * (max(lanes, default=0) + 1) + 8
    name = lock.name if lock.kind == "lock" else f"{lock.kind} {lock.name}"
    label = name if len(name) <= 22 else f"{name[:10]}…{name[-11:]}"
    parts = [
        f'<svg viewBox="0 0 {_LEFT + _WIDTH + 60} {height}" role="img" '
        f'aria-label="timeline of {escape(name)}">',
        f'<text x="4" y="{_TOP + 14}">{escape(label)}<title>{escape(name)}</title></text>',
        *time_axis(scale, _TOP - 8, height - 4),
    ]
    colours: dict[str, str] = {}
    for span, lane in zip(drawn, lanes, strict=True):
        colour = colours.setdefault(span.owner, COLOURS[len(colours) % len(COLOURS)])
        parts += _bar(span, scale, _TOP + lane * _LANE + _LANE / 2, colour)
    return "".join([*parts, "</svg>"])


def _begin(span: Span, start: float) -> float:
    known = [at for at in (span.asked, span.granted) if at is not None]
    return min(known) if known else start


def _lanes(spans: Sequence[Span], start: float, end: float) -> list[int]:
    """Give each claim the first lane that is free; the last lane takes all the others."""
    free_at = [start - 1.0] * LANES_MAX
    lanes = []
    for span in spans:
        begin = _begin(span, start)
        until = span.ended if span.ended is not None else end
        lane = next((at for at in range(LANES_MAX) if free_at[at] <= begin), LANES_MAX - 1)
        free_at[lane] = max(free_at[lane], until)
        lanes.append(lane)
    return lanes


def _bar(span: Span, scale: Scale, y: float, colour: str) -> Iterator[str]:
    end = span.ended if span.ended is not None else scale.end
    hint = escape(_hint(span))
    if span.asked is not None:
        until = span.granted if span.granted is not None else end
        yield (
            f'<line class="wait" x1="{scale.x(span.asked):.1f}" x2="{scale.x(until):.1f}" '
            f'y1="{y}" y2="{y}"><title>{hint}</title></line>'
        )
    if span.how == "gave_up" and span.granted is None:
        yield (
            f'<circle class="bad" cx="{scale.x(end):.1f}" cy="{y}" r="4">'
            f"<title>{hint}</title></circle>"
        )
        return
    if span.asked is not None and span.granted is None:
        return
    begin = span.granted if span.granted is not None else scale.start
    x = scale.x(begin)
    width = max(1.5, scale.x(end) - x)
    yield (
        f'<rect x="{x:.1f}" y="{y - 6}" width="{width:.1f}" height="12" rx="2" fill="{colour}">'
        f"<title>{hint}</title></rect>"
    )
    if span.was_lost:
        yield (
            f'<rect x="{x + width - 2:.1f}" y="{y - 8}" width="3" height="16" fill="{BAD}">'
            f"<title>{hint}</title></rect>"
        )


def _hint(span: Span) -> str:
    parts = [span.owner]
    if span.token is not None and span.kind != "semaphore":
        parts.append(f"token {span.token}")
    if span.waited:
        parts.append(f"waited {span_label(span.waited)}")
    if span.held is not None:
        parts.append(f"held {span_label(span.held)}")
    if span.how:
        parts.append(span.how.replace("_", " ") + (f": {span.detail}" if span.detail else ""))
    return ", ".join(parts)


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
            f"{span.how}: {span.detail}" if span.detail else span.how,
        ]
        for span in lost[-ROWS_MAX:]
    ]
    header = ["lock", "owner", "token", "at", "held for", "why"]
    return table(header, rows, numbers=(3, 4))
