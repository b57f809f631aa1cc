"""Claims at one lock over time: waits as dashed lines, leases as bars, losses with a red end."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from html import escape
from typing import Final, NamedTuple

from lockfast.drawing.shapes import (
    BAR_SWATCH,
    WAIT_SWATCH,
    Scale,
    bar,
    drawing,
    since_start,
    time_axis,
    waiting,
)

LANES_MAX: Final = 9
_LANE: Final = 18
_TOP: Final = 30
_RIGHT: Final = 20
_LABEL: Final = 22
"""The most characters of a lock's name beside its timeline."""


class Strip(NamedTuple):
    """One claim. Instants are seconds of one clock."""

    series: int
    """Its colour."""
    asked: float | None
    """When it began to wait; None if it did not."""
    granted: float | None
    """When it was granted; None if it never was, or before the timeline begins."""
    ended: float | None
    """When it ended; None while it lasts."""
    lost: bool
    gave_up: bool
    hint: str

    @property
    def begin(self) -> float | None:
        known = [at for at in (self.asked, self.granted) if at is not None]
        return min(known) if known else None


LEGEND: Final[Mapping[str, str]] = {
    "a lease, with its token when you point at it": BAR_SWATCH,
    "waiting": WAIT_SWATCH,
    "the lease was lost": BAR_SWATCH + '<rect class="bad-fill" x="23" width="3" height="14"/>',
    "gave up": '<circle class="bad" cx="13" cy="7" r="4"/>',
}


def timeline(
    name: str,
    strips: Sequence[Strip],
    start: float,
    end: float,
    *,
    width: float = 1240,
    left: float = 150,
    label: Callable[[float, float], str] = since_start,
    exact: bool = False,
) -> str:
    """Return the picture of one lock; with `left`, its name is beside it."""
    drawn = sorted(strips, key=lambda strip: _begin(strip, start))
    scale = Scale(start, end, max(left, 6), width - max(left, 6) - _RIGHT)
    lanes = _lanes(drawn, start, end)
    height = _TOP + _LANE * (max(lanes, default=0) + 1) + 8
    short = name if len(name) <= _LABEL else f"{name[:10]}…{name[-11:]}"
    parts = list(time_axis(scale, _TOP - 8, height - 4, label=label))
    if left:
        parts.append(
            f'<text x="4" y="{_TOP + 14}">{escape(short)}<title>{escape(name)}</title></text>'
        )
    for strip, lane in zip(drawn, lanes, strict=True):
        parts += _strip(strip, scale, _TOP + lane * _LANE + _LANE / 2)
    return drawing(width, height, f"timeline of {name}", "".join(parts), exact=exact)


def _begin(strip: Strip, start: float) -> float:
    return strip.begin if strip.begin is not None else start


def _lanes(strips: Sequence[Strip], start: float, end: float) -> list[int]:
    """Give each claim the first free lane; the last lane takes all others."""
    free_at = [start - 1.0] * LANES_MAX
    lanes = []
    for strip in strips:
        begin = _begin(strip, start)
        until = strip.ended if strip.ended is not None else end
        lane = next((at for at in range(LANES_MAX) if free_at[at] <= begin), LANES_MAX - 1)
        free_at[lane] = max(free_at[lane], until)
        lanes.append(lane)
    return lanes


def _strip(strip: Strip, scale: Scale, y: float) -> Iterator[str]:
    end = strip.ended if strip.ended is not None else scale.end
    title = f"<title>{escape(strip.hint)}</title>"
    if strip.asked is not None:
        until = strip.granted if strip.granted is not None else end
        yield waiting(scale.x(strip.asked), scale.x(until), y, strip.hint)
    if strip.gave_up and strip.granted is None:
        yield f'<circle class="bad" cx="{scale.x(end):.1f}" cy="{y}" r="4">{title}</circle>'
        return
    if strip.asked is not None and strip.granted is None:
        return
    x = scale.x(strip.granted if strip.granted is not None else scale.start)
    width = max(1.5, scale.x(end) - x)
    yield bar(strip.series, x, y, width, 12, strip.hint)
    if strip.lost:
        yield (
            f'<rect class="bad-fill" x="{x + width - 2:.1f}" y="{y - 8}" width="3" height="16">'
            f"{title}</rect>"
        )
