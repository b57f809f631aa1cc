"""Render a history as a self-contained HTML page with an SVG timeline."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from html import escape
from pathlib import Path
from typing import Final

from lockfast.drawing import COLOURS, Scale, document, time_axis
from lockfast.sim.checker import FAR, Grant, Problem, grants_of
from lockfast.sim.history import Entry
from lockfast.sim.story import lanes_of, short_tokens, shortened, tell

_LEFT: Final = 110
_WIDTH: Final = 1100
_LANE: Final = 46
_TOP: Final = 40
_BAR: Final = 22


class PageError(ValueError):
    """The page could not be written."""


def write_page(
    to: Path,
    entries: Sequence[Entry],
    problems: Iterable[Problem],
    *,
    title: str,
    summary: str = "",
) -> None:
    """Write the page of a history. Raises PageError if the file cannot be written."""
    text = page(entries, problems, title=title, summary=summary)
    try:
        to.write_text(text, encoding="utf-8")
    except OSError as error:
        raise PageError(f"{to} cannot be written: {error.strerror}") from None


def page(
    entries: Sequence[Entry], problems: Iterable[Problem], *, title: str, summary: str = ""
) -> str:
    """Return the whole page: the verdict, the timeline, the story."""
    found = list(problems)
    short = short_tokens(entries)
    texts = [escape(shortened(str(problem), short)) for problem in found]
    verdict = "<br>".join(texts) or "All promises were kept."
    story = escape("\n".join(tell(entries, found)))
    body = (
        f"<p>{escape(summary)}</p>"
        f'<p class="verdict {"broken" if found else "good"}">{verdict}</p>'
        f"{svg(entries)}{_LEGEND}<h2>The story</h2><pre>{story}</pre>"
    )
    return document(title, body)


_BAR_SWATCH: Final = f'<rect y="2" width="26" height="10" rx="2" fill="{COLOURS[0]}"/>'
_SWATCHES: Final = {
    "a lease, with the number of its token": _BAR_SWATCH,
    "the lease has ended but its holder has not noticed, or another holds too": (
        _BAR_SWATCH + '<rect y="2" width="26" height="10" fill="url(#hatch)" stroke="#d62839"/>'
    ),
    "waiting": '<line class="wait" x1="0" x2="26" y1="7" y2="7"/>',
    "paused, or down": '<rect class="pause" width="26" height="14"/>',
    "at the store: who holds by its own reckoning": (
        f'<rect y="5" width="26" height="5" fill="{COLOURS[0]}" opacity=".6"/>'
    ),
    "a write admitted": '<circle cx="13" cy="7" r="4" fill="#2a9d5c"/>',
    "a stale write refused": ('<path d="M9 3l8 8m0-8l-8 8" stroke="#d62839" stroke-width="2.5"/>'),
    "a stale write that got through": '<circle cx="13" cy="7" r="4" fill="#d62839"/>',
    "a lost message": (
        '<path d="M2 7h20m-4-3l4 3l-4 3M9 3l6 8" stroke="currentColor" fill="none"/>'
    ),
}
"""What is drawn, by what it means."""
_LEGEND: Final = (
    '<ul class="legend">'
    + "".join(
        f'<li><svg width="26" height="14" viewBox="0 0 26 14" aria-hidden="true">{swatch}</svg> '
        f"{escape(text)}</li>"
        for text, swatch in _SWATCHES.items()
    )
    + "</ul>"
)


def svg(entries: Sequence[Entry]) -> str:
    """Return the SVG alone."""
    lanes = lanes_of(entries)
    times = [entry["at"] for entry in entries] or [0]
    scale = Scale(min(times), max(times), _LEFT, _WIDTH)
    height = _TOP + _LANE * len(lanes) + 20
    y_of = {lane: _TOP + _LANE * i + _LANE // 2 for i, lane in enumerate(lanes)}
    parts = [
        f'<svg viewBox="0 0 {_LEFT + _WIDTH + 60} {height}" role="img" aria-label="timeline">',
        '<defs><pattern id="hatch" width="7" height="7" patternUnits="userSpaceOnUse" '
        'patternTransform="rotate(45)"><rect width="3" height="7" fill="#d62839" opacity=".55"/>'
        "</pattern></defs>",
        *_axes(scale, y_of, height),
        *_pauses(entries, scale, y_of),
        *_held_in_store(entries, scale, y_of),
        *_leases(entries, scale, y_of),
        *_lost_messages(entries, scale, y_of),
        *_writes(entries, scale, y_of),
        *_faults(entries, scale, y_of),
        "</svg>",
    ]
    return "".join(parts)


def _axes(scale: Scale, y_of: dict[str, int], height: int) -> Iterator[str]:
    for lane, y in y_of.items():
        yield f'<line class="lane" x1="{_LEFT}" x2="{_LEFT + _WIDTH}" y1="{y}" y2="{y}"/>'
        yield f'<text x="8" y="{y + 4}">{escape(lane)}</text>'
    yield from time_axis(scale, _TOP - 8, height - 16, per_second=1_000_000)


def _leases(entries: Sequence[Entry], scale: Scale, y_of: dict[str, int]) -> Iterator[str]:
    grants = grants_of(entries)
    noticed = {e["of"]: e["at"] for e in entries if e.get("ask") == "release"}
    short = short_tokens(entries)
    places = _places(grants, scale.end)
    for i, grant in enumerate(grants):
        row, rows = places[i]
        bar = _BAR if rows == 1 else max(3.0, (_LANE - 6) / rows - 1)
        y = y_of[grant.by] + (row - (rows - 1) / 2) * (bar + 1)
        end = grant.answered if grant.answered is not None else scale.end
        yield (
            f'<line class="wait" x1="{scale.x(grant.asked):.1f}" x2="{scale.x(end):.1f}" '
            f'y1="{y}" y2="{y}"/>'
        )
        if not grant.granted or grant.answered is None:
            continue
        colour = COLOURS[i % len(COLOURS)]
        over = min(grant.over, scale.end)
        x, width = scale.x(grant.answered), max(2.0, scale.x(over) - scale.x(grant.answered))
        hint = escape(f"{grant.by}: {grant.places[0].name}, token {grant.token}, {grant.why}")
        yield (
            f'<rect x="{x:.1f}" y="{y - bar / 2:.1f}" width="{width:.1f}" height="{bar:.1f}" '
            f'rx="3" fill="{colour}"><title>{hint}</title></rect>'
        )
        for start, stop in _only_believed(grant, grants, noticed.get(grant.op), scale.end):
            left, wide = scale.x(start), max(3.0, scale.x(stop) - scale.x(start))
            yield (
                f'<rect x="{left:.1f}" y="{y - bar / 2:.1f}" width="{wide:.1f}" height="{bar:.1f}" '
                f'fill="url(#hatch)" stroke="#d62839"><title>{hint}</title></rect>'
            )
        if bar < 12:
            continue  # too low for a number
        if width > 16:
            yield f'<text class="on" x="{x + 4:.1f}" y="{y + 4}">{short[grant.token]}</text>'
        elif len(grants) <= 12:
            yield (
                f'<text class="by" x="{x + width + 3:.1f}" y="{y + 4}">{short[grant.token]}</text>'
            )


def _places(grants: Sequence[Grant], end: float) -> list[tuple[int, int]]:
    """Return for each grant its row within its lane and the number of rows there.

    Leases that a client held at the same time are drawn one below the other.
    """
    rows: dict[str, list[float]] = {}
    row_of: list[int] = []
    for grant in grants:
        lane = rows.setdefault(grant.by, [])
        begins = grant.asked
        stops = max(begins, min(grant.over if grant.granted else grant.answered or end, end))
        free = next((i for i, until in enumerate(lane) if until <= begins), len(lane))
        lane[free : free + 1] = [stops]
        row_of.append(free)
    return [(row, len(rows[grant.by])) for row, grant in zip(row_of, grants, strict=True)]


def _held_in_store(entries: Sequence[Entry], scale: Scale, y_of: dict[str, int]) -> Iterator[str]:
    """Draw the holders according to the store, where they were recorded."""
    short = short_tokens(entries)
    since: dict[tuple[str, int], int] = {}

    def bar(held: tuple[str, int], until: float) -> str:
        lane, token = held
        x, y = scale.x(since.pop(held)), y_of[lane]
        width = max(1.5, scale.x(until) - x - 1.5)
        number = short.get(token, 0)
        label = f'<text class="dim" x="{x + 2:.1f}" y="{y + 18}">{number or ""}</text>'
        return (
            f'<rect class="store" x="{x:.1f}" y="{y - 5}" width="{width:.1f}" height="10">'
            f"<title>{escape(lane)}: token {number}</title></rect>" + (label if width > 16 else "")
        )

    for entry in entries:
        what = entry.get("store")
        if what is None:
            continue
        lane, token = entry.get("on", "store"), entry.get("token", 0)
        if what == "granted":
            since[lane, token] = entry["at"]
        elif what == "begins":
            # The store has lost what it acknowledged before and does not list now.
            for held in [held for held in since if held[0] == lane]:
                if held[1] not in entry["holds"]:
                    yield bar(held, entry["at"])
        elif (lane, token) in since:
            yield bar((lane, token), entry["at"])
    for held in list(since):
        yield bar(held, scale.end)


def _only_believed(
    grant: Grant, grants: Sequence[Grant], noticed: int | None, end: float
) -> Iterator[tuple[float, float]]:
    """Return when the holder believes that it holds but does not, or not alone."""
    if grant.why == "deadline" and noticed is not None and noticed > grant.over:
        yield grant.over, noticed
    for other in grants:
        if (
            other.token > grant.token
            and other.granted
            and other.answered is not None
            and other.places == grant.places
            and other.places[0].mode == "exclusive"
            and other.answered < min(grant.over, end, FAR)
        ):
            yield other.answered, min(grant.over, end)
            return


def _writes(entries: Sequence[Entry], scale: Scale, y_of: dict[str, int]) -> Iterator[str]:
    newest: dict[str, int] = {}
    short = short_tokens(entries)
    for entry in entries:
        if "write" not in entry:
            continue
        x, y = scale.x(entry["at"]), y_of["resource"]
        stale = entry["token"] < newest.get(entry["write"], 0)
        newest[entry["write"]] = max(entry["token"], newest.get(entry["write"], 0))
        number = short.get(entry["token"], 0)
        hint = escape(f"{entry['by']} writes {entry['value']} with token {number}")
        source = y_of.get(entry["by"], y)
        yield f'<line class="lost" opacity=".5" x1="{x:.1f}" x2="{x:.1f}" y1="{source}" y2="{y}"/>'
        if not entry["admitted"]:
            yield (
                f'<path class="bad" d="M{x - 7:.1f} {y - 7}l14 14m0 -14l-14 14">'
                f"<title>{hint}: refused</title></path>"
                f'<text x="{x - 10:.1f}" y="{y - 10}" text-anchor="end" style="fill:#d62839">'
                f"token {number} refused</text>"
            )
        elif stale:
            yield (
                f'<circle class="badfill" cx="{x:.1f}" cy="{y}" r="8">'
                f"<title>{hint}: stale, and it got through</title></circle>"
                f'<text x="{x - 10:.1f}" y="{y - 14}" text-anchor="end" style="fill:#d62839">'
                f"stale token {number} got through</text>"
            )
        else:
            yield f'<circle class="ok" cx="{x:.1f}" cy="{y}" r="5"><title>{hint}</title></circle>'


def _pauses(entries: Sequence[Entry], scale: Scale, y_of: dict[str, int]) -> Iterator[str]:
    since: dict[str, int] = {}
    for entry in [*entries, {"at": scale.end, "heal": True}]:
        if entry.get("fault") in ("pause", "failover", "store_crash", "node_crash"):
            since[entry["on"]] = entry["at"]
        ended = list(since) if "heal" in entry else [entry.get("resumed")]
        for name in ended:
            if name in since:
                x = scale.x(since.pop(name))
                width = scale.x(entry["at"]) - x
                y = y_of[name] - _LANE / 2 + 3
                yield (
                    f'<rect class="pause" x="{x:.1f}" y="{y}" width="{width:.1f}" '
                    f'height="{_LANE - 6}"/>'
                )


def _faults(entries: Sequence[Entry], scale: Scale, y_of: dict[str, int]) -> Iterator[str]:
    for entry in entries:
        if "fault" in entry:
            x, y = scale.x(entry["at"]), y_of.get(entry["on"], y_of.get("store", _TOP))
            yield f'<path d="M{x:.1f} {y - 12}l5 -9h-10z" fill="#e49444"/>'
            yield f'<text x="{x + 7:.1f}" y="{y - 14}">{escape(entry["fault"])}</text>'


def _lost_messages(entries: Sequence[Entry], scale: Scale, y_of: dict[str, int]) -> Iterator[str]:
    for entry in entries:
        if "lost_message" not in entry:
            continue
        source, target = y_of.get(entry["lost_message"]), y_of.get(entry["to"])
        if source is None or target is None:
            continue
        x, middle = scale.x(entry["at"]), (source + target) / 2
        way = 1 if target > source else -1
        yield (
            f'<path class="lost" d="M{x:.1f} {source}L{x + 8:.1f} {target - way * 14}'
            f'm-5 {-way * 7}l5 {way * 7}l4 {-way * 8}"><title>lost</title></path>'
        )
        yield f'<path class="bad" d="M{x - 1:.1f} {middle - 5}l10 10m0 -10l-10 10"/>'
