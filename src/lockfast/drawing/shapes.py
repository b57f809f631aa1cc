"""A scale of time with its axis, and the shapes of leases, waits and losses."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from html import escape
from typing import Final, NamedTuple

SERIES: Final = 6
"""The number of colours: classes s0 to s5."""
HATCH: Final = (
    '<defs><pattern id="hatch" width="7" height="7" patternUnits="userSpaceOnUse" '
    'patternTransform="rotate(45)"><rect class="hatch" width="3" height="7"/></pattern></defs>'
)
"""The pattern of `hatched`, needed once per drawing."""


class Scale(NamedTuple):
    """Maps instants to horizontal positions."""

    start: float
    end: float
    left: float
    width: float

    def x(self, at: float) -> float:
        span = max(1e-9, self.end - self.start)
        return self.left + (min(max(at, self.start), self.end) - self.start) / span * self.width


class Colours:
    """Gives each owner a colour, in the order in which they appear."""

    def __init__(self) -> None:
        self._known: dict[str, int] = {}

    def of(self, owner: str) -> int:
        return self._known.setdefault(owner, len(self._known) % SERIES)

    def __iter__(self) -> Iterator[tuple[str, int]]:
        return iter(self._known.items())


def isolated(text: str) -> str:
    """Return untrusted text, isolated so that its direction does not change what follows."""
    return f"\u2068{text}\u2069"


def span_label(seconds: float) -> str:
    """Return a duration as a short label."""
    if seconds < 1:
        return f"{seconds * 1000:.4g} ms"
    if seconds < 120:
        return f"{seconds:.3g} s"
    return f"{seconds / 60:.3g} min" if seconds < 7200 else f"{seconds / 3600:.3g} h"


def since_start(seconds: float, span: float) -> str:
    """Label an instant by the time since the start of the axis."""
    return span_label(seconds)


def until_now(seconds: float, span: float) -> str:
    """Label an instant by the time until the end of the axis."""
    return "now" if span - seconds < span / 1000 else f"−{span_label(span - seconds)}"


def _steps(per_second: float) -> Iterator[float]:
    """Yield distances between grid lines that are easy to read: 1, 2 or 5, and parts of an hour."""
    yield from (
        factor * 10.0**power
        for power in range(-6, 19)
        for factor in (1, 2, 5)
        if factor * 10.0**power / per_second <= 10
    )
    yield from (seconds * per_second for seconds in (15, 30, 60, 120, 300, 600, 900, 1800, 3600))
    yield from (hours * 3600 * per_second for hours in (2, 6, 12))
    yield from (
        factor * 86400 * 10.0**power * per_second for power in range(9) for factor in (1, 2, 5)
    )


def time_axis(
    scale: Scale,
    top: float,
    bottom: float,
    per_second: float = 1.0,
    label: Callable[[float, float], str] = since_start,
) -> Iterator[str]:
    """Yield vertical lines with their time, at most one for every 85 pixels."""
    span = max(1e-9, scale.end - scale.start)
    lines_max = max(3, min(12, int(scale.width / 85)))
    step = next(step for step in _steps(per_second) if span / step <= lines_max)
    # A label is right of its line; the last one is left of it, where there is room.
    room = 60 / scale.width * span
    for number in range(int(span / step) + 1):
        at = scale.start + number * step if label is since_start else scale.end - number * step
        x = scale.x(at)
        yield f'<line class="axis" x1="{x:.1f}" x2="{x:.1f}" y1="{top}" y2="{bottom}"/>'
        text = label((at - scale.start) / per_second, span / per_second)
        anchor, shift = (' text-anchor="end"', -3) if scale.end - at < room else ("", 3)
        yield f'<text class="dim"{anchor} x="{x + shift:.1f}" y="{top - 6}">{text}</text>'


def drawing(width: float, height: float, label: str, parts: str, *, exact: bool = False) -> str:
    """Return an SVG. An exact one is shown in its own size, others as wide as the page."""
    size = f' width="{width:g}" height="{height:g}"' if exact else ""
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="drawing{" exact" * exact}"{size} '
        f'viewBox="0 0 {width:g} {height:g}" role="img" aria-label="{escape(label)}">{parts}</svg>'
    )


def bar(
    series: int, x: float, y: float, width: float, height: float, hint: str = "", label: str = ""
) -> str:
    """Return the bar of a lease, centred on `y`. Its label is drawn inside if it fits."""
    title = f"<title>{escape(hint)}</title>" if hint else ""
    drawn = (
        f'<rect class="s{series}" x="{x:.1f}" y="{y - height / 2:.1f}" width="{width:.1f}" '
        f'height="{height:.1f}" rx="{3 if height > 12 else 2}">{title}</rect>'
    )
    if label and height >= 12 and width > 8 + 7 * len(label):
        drawn += (
            f'<text class="inside s{series}" x="{x + 4:.1f}" y="{y + 4:.1f}">{escape(label)}</text>'
        )
    return drawn


def hatched(x: float, y: float, width: float, height: float, hint: str = "") -> str:
    """Return the hatching over a bar whose holder only believes that it holds."""
    title = f"<title>{escape(hint)}</title>" if hint else ""
    return (
        f'<rect class="hatched" x="{x:.1f}" y="{y - height / 2:.1f}" width="{width:.1f}" '
        f'height="{height:.1f}" fill="url(#hatch)">{title}</rect>'
    )


def waiting(x: float, until: float, y: float, hint: str = "") -> str:
    title = f"<title>{escape(hint)}</title>" if hint else ""
    return (
        f'<line class="waiting" x1="{x:.1f}" x2="{until:.1f}" y1="{y:.1f}" y2="{y:.1f}">'
        f"{title}</line>"
    )


def cross(x: float, y: float, size: float, hint: str = "") -> str:
    """Return the mark of a refusal or a loss."""
    title = f"<title>{escape(hint)}</title>" if hint else ""
    return (
        f'<path class="bad" d="M{x - size:.1f} {y - size:.1f}l{2 * size:g} {2 * size:g}'
        f'm0 -{2 * size:g}l-{2 * size:g} {2 * size:g}">{title}</path>'
    )


def dot(kind: str, x: float, y: float, radius: float, hint: str = "") -> str:
    """Return the mark of a write; `kind` is good or bad."""
    title = f"<title>{escape(hint)}</title>" if hint else ""
    return f'<circle class="{kind}-fill" cx="{x:.1f}" cy="{y:.1f}" r="{radius:g}">{title}</circle>'


def pause(x: float, y: float, width: float, height: float) -> str:
    """Return the background of a lane for the time of a pause, centred on `y`."""
    return (
        f'<rect class="pause" x="{x:.1f}" y="{y - height / 2:.1f}" width="{width:.1f}" '
        f'height="{height:g}"/>'
    )


def fault(x: float, y: float, text: str) -> str:
    """Return the mark of a fault above a lane; `y` is the middle of the lane."""
    return (
        f'<path class="fault" d="M{x:.1f} {y - 12:g}l5 -9h-10z"/>'
        f'<text x="{x + 7:.1f}" y="{y - 14:g}">{escape(text)}</text>'
    )


def link(x: float, y: float, until_y: float) -> str:
    """Return the line from a writer's lane to the lane of the resource it writes to."""
    return f'<line class="message link" x1="{x:.1f}" x2="{x:.1f}" y1="{y:g}" y2="{until_y:g}"/>'


BAR_SWATCH: Final = bar(0, 0, 7, 26, 10)
WAIT_SWATCH: Final = waiting(0, 26, 7)
