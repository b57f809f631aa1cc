"""Render a history as a self-contained HTML page with an SVG timeline."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from html import escape
from pathlib import Path
from typing import Final

from lockfast.drawing.page import document, legend, verdict
from lockfast.drawing.shapes import (
    BAR_SWATCH,
    HATCH,
    SERIES,
    WAIT_SWATCH,
    Colours,
    Scale,
    bar,
    cross,
    dot,
    drawing,
    fault,
    hatched,
    isolated,
    link,
    pause,
    time_axis,
    waiting,
)
from lockfast.sim.checker import FAR, Grant, Problem, grants_of
from lockfast.sim.history import Entry
from lockfast.sim.story import lanes_of, names_of, short_tokens, shortened, tell

_LEFT: Final = 170
_NAME_MAX: Final = 24
"""Characters of a lane's name that fit to the left of it; the end tells names apart best."""
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
    said = "<br>".join(texts) or "All promises were kept."
    story = escape("\n".join(tell(entries, found)))
    body = (
        f"<p>{escape(summary)}</p>"
        f'{verdict(said, good=not found)}<div class="scroll">{svg(entries)}</div>'
        f"{legend({**_lock_swatches(entries), **_SWATCHES})}<h2>The story</h2><pre>{story}</pre>"
    )
    return document(title, body)


_SWATCHES: Final = {
    "a lease, with the number of its token": BAR_SWATCH,
    "the lease has ended but its holder has not noticed, or another holds too": (
        BAR_SWATCH + hatched(0, 7, 26, 10)
    ),
    "waiting": WAIT_SWATCH,
    "paused, or down": '<rect class="pause" width="26" height="14"/>',
    "at the store: who holds by its own reckoning": (
        '<rect class="of-store" y="2" width="26" height="10"/>'
    ),
    "a write admitted": dot("good", 13, 7, 4),
    "a stale write refused": cross(13, 7, 4),
    "a stale write that got through": dot("bad", 13, 7, 5),
    "a lost message": '<path class="message" d="M2 7h20m-4-3l4 3l-4 3M9 3l6 8"/>',
}
"""What is drawn, by what it means."""


def svg(entries: Sequence[Entry]) -> str:
    """Return the SVG alone."""
    lanes = lanes_of(entries)
    times = [entry["at"] for entry in entries] or [0]
    scale = Scale(min(times), max(times), _LEFT, _WIDTH)
    height = _TOP + _LANE * len(lanes) + 20
    y_of = {lane: _TOP + _LANE * i + _LANE // 2 for i, lane in enumerate(lanes)}
    parts = [
        HATCH,
        *_axes(scale, y_of, height, names_of(entries)),
        *_pauses(entries, scale, y_of),
        *_held_in_store(entries, scale, y_of),
        *_leases(entries, scale, y_of),
        *_lost_messages(entries, scale, y_of),
        *_writes(entries, scale, y_of),
        *_faults(entries, scale, y_of),
    ]
    return drawing(_LEFT + _WIDTH + 60, height, "timeline", "".join(parts))


def _axes(scale: Scale, y_of: dict[str, int], height: int, names: dict[str, str]) -> Iterator[str]:
    for lane, y in y_of.items():
        name = names.get(lane, lane)
        shown = name if len(name) <= _NAME_MAX else f"…{name[1 - _NAME_MAX :]}"
        yield f'<line class="axis" x1="{_LEFT}" x2="{_LEFT + _WIDTH}" y1="{y}" y2="{y}"/>'
        yield f'<text x="8" y="{y + 4}">{escape(shown)}<title>{escape(name)}</title></text>'
    yield from time_axis(scale, _TOP - 8, height - 16, per_second=1_000_000)


def _leases(entries: Sequence[Entry], scale: Scale, y_of: dict[str, int]) -> Iterator[str]:
    grants = grants_of(entries)
    noticed = {e["of"]: e["at"] for e in entries if e.get("ask") == "release"}
    short = short_tokens(entries)
    places, names = _places(grants, scale.end), names_of(entries)
    series = _series_of(grants)
    for i, grant in enumerate(grants):
        row, rows = places[i]
        high = _BAR if rows == 1 else max(3.0, (_LANE - 6) / rows - 1)
        y = y_of[grant.by] + (row - (rows - 1) / 2) * (high + 1)
        end = grant.answered if grant.answered is not None else scale.end
        yield waiting(scale.x(grant.asked), scale.x(end), y)
        if not grant.granted or grant.answered is None:
            continue
        over = min(grant.over, scale.end)
        x, width = scale.x(grant.answered), max(2.0, scale.x(over) - scale.x(grant.answered))
        by = names.get(grant.by, grant.by)
        hint = f"{by}: {grant.places[0].name}, token {grant.token}, {grant.why}"
        number = str(short[grant.token])
        yield bar(series[i], x, y, width, high, hint, number)
        for start, stop in _only_believed(grant, grants, noticed.get(grant.op), scale.end):
            left, wide = scale.x(start), max(3.0, scale.x(stop) - scale.x(start))
            yield hatched(left, y, wide, high, hint)
        if high >= 12 and width <= 8 + 7 * len(number) and len(grants) <= 12:
            yield f'<text class="beside" x="{x + width + 3:.1f}" y="{y + 4}">{number}</text>'


def _series_of(grants: Sequence[Grant]) -> list[int]:
    """Return the colour of each grant: by its lock, or by its client if there is one lock."""
    colours = Colours()
    several = len({_lock_of(grant) for grant in grants}) > 1
    return [colours.of(_lock_of(grant) if several else grant.by) for grant in grants]


def _lock_of(grant: Grant) -> str:
    return grant.places[0].name


def _lock_swatches(entries: Sequence[Entry]) -> dict[str, str]:
    """Return a swatch for each lock, if there are several and each has a colour of its own."""
    grants = grants_of(entries)
    found = dict(zip(map(_lock_of, grants), _series_of(grants), strict=True))
    if not 1 < len(found) <= SERIES:
        return {}
    return {isolated(name): bar(series, 0, 7, 26, 10) for name, series in found.items()}


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

    def held_bar(held: tuple[str, int], until: float) -> str:
        lane, token = held
        x, y = scale.x(since.pop(held)), y_of[lane]
        width = max(1.5, scale.x(until) - x - 1.5)
        number = short.get(token, 0)
        label = f'<text class="dim" x="{x + 2:.1f}" y="{y + 18}">{number or ""}</text>'
        return (
            f'<rect class="of-store" x="{x:.1f}" y="{y - 5}" width="{width:.1f}" height="10">'
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
                    yield held_bar(held, entry["at"])
        elif (lane, token) in since:
            yield held_bar((lane, token), entry["at"])
    for held in list(since):
        yield held_bar(held, scale.end)


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
        hint = f"{entry['by']} writes {entry['value']} with token {number}"
        source = y_of.get(entry["by"], y)
        yield link(x, source, y)
        if not entry["admitted"]:
            yield cross(x, y, 7, f"{hint}: refused")
            yield (
                f'<text class="bad" x="{x - 10:.1f}" y="{y - 10}" text-anchor="end">'
                f"token {number} refused</text>"
            )
        elif stale:
            yield dot("bad", x, y, 8, f"{hint}: stale, and it got through")
            yield (
                f'<text class="bad" x="{x - 10:.1f}" y="{y - 14}" text-anchor="end">'
                f"stale token {number} got through</text>"
            )
        else:
            yield dot("good", x, y, 5, hint)


def _pauses(entries: Sequence[Entry], scale: Scale, y_of: dict[str, int]) -> Iterator[str]:
    since: dict[str, int] = {}
    for entry in [*entries, {"at": scale.end, "heal": True}]:
        if entry.get("fault") in ("pause", "failover", "store_crash", "node_crash"):
            since[entry["on"]] = entry["at"]
        ended = list(since) if "heal" in entry else [entry.get("resumed")]
        for name in ended:
            if name in since:
                x = scale.x(since.pop(name))
                yield pause(x, _lane_of(name, y_of), scale.x(entry["at"]) - x, _LANE - 6)


def _lane_of(name: str, y_of: dict[str, int]) -> int:
    """Return where to draw a fault of a host; a member of a cluster has no lane of its own."""
    return y_of.get(name, y_of.get("store", _TOP))


def _faults(entries: Sequence[Entry], scale: Scale, y_of: dict[str, int]) -> Iterator[str]:
    for entry in entries:
        if "fault" in entry:
            x, y = scale.x(entry["at"]), _lane_of(entry["on"], y_of)
            yield fault(x, y, entry["fault"])


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
            f'<path class="message" d="M{x:.1f} {source}L{x + 8:.1f} {target - way * 14}'
            f'm-5 {-way * 7}l5 {way * 7}l4 {-way * 8}"><title>lost</title></path>'
        )
        yield cross(x + 4, middle, 5)
