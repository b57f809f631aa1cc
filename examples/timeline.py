"""A picture of who held a lock when, as SVG: a lane per process, a bar per lease."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple
from xml.sax.saxutils import escape

COLOURS = ("#2563a8", "#b45f06", "#3f7d20", "#7a4fa3", "#00798c", "#8a5a44")
INK, FAINT, GRID, RED = "#1f2933", "#6b7785", "#e3e7eb", "#c81e1e"

WIDTH, LEFT, RIGHT = 1160, 96, 36
TOP, LANE, BAR = 104, 104, 30
BELOW = 116


class Span(NamedTuple):
    """Something that lasted from `start` to `end`, in seconds."""

    lane: str
    start: float
    end: float


class Lease(NamedTuple):
    """One grant: `end` is when it ended, `believed_until` when its holder noticed."""

    lane: str
    token: int
    start: float
    end: float
    believed_until: float


class Mark(NamedTuple):
    """Something that happened at one instant."""

    lane: str
    at: float


@dataclass
class Timeline:
    """What to draw."""

    title: str
    subtitle: str
    lanes: Sequence[str]
    waits: list[Span] = field(default_factory=list)
    leases: list[Lease] = field(default_factory=list)
    stops: list[Span] = field(default_factory=list)
    writes: list[Mark] = field(default_factory=list)
    refusals: list[Mark] = field(default_factory=list)


def draw(timeline: Timeline) -> str:
    """The picture as the text of an SVG file."""
    return "\n".join(_Drawing(timeline).parts()) + "\n"


class _Drawing:
    def __init__(self, timeline: Timeline) -> None:
        self.timeline = timeline
        instants = [lease.believed_until for lease in timeline.leases]
        instants += [mark.at for mark in timeline.refusals]
        self.seconds = max(instants, default=1.0) * 1.01
        self.bottom = TOP + LANE * len(timeline.lanes)
        self.height = self.bottom + BELOW
        self.lowest = min((lease.token for lease in timeline.leases), default=0)
        self.labelled_to: dict[str, float] = {}
        self.shown_from = _first_difference([str(lease.token) for lease in timeline.leases])

    def parts(self) -> Iterable[str]:
        timeline = self.timeline
        yield (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {self.height}" '
            f'width="{WIDTH}" height="{self.height}" role="img" '
            'font-family="system-ui, -apple-system, Segoe UI, Helvetica, Arial, sans-serif">'
        )
        yield f"<title>{escape(timeline.title)}</title>"
        yield "<defs>"
        for colour in COLOURS:
            yield (
                f'<pattern id="{_hatch(colour)}" width="7" height="7" '
                'patternUnits="userSpaceOnUse" patternTransform="rotate(45)">'
                '<rect width="7" height="7" fill="#ffffff"/>'
                f'<rect width="2.6" height="7" fill="{colour}"/></pattern>'
            )
        yield "</defs>"
        yield f'<rect width="{WIDTH}" height="{self.height}" fill="#ffffff"/>'
        yield text(36, 42, timeline.title, size=21, weight=600)
        yield text(36, 66, timeline.subtitle, size=13.5, fill=FAINT)
        yield from self._grid()
        yield from self._lanes()
        yield from self._hand_overs()
        yield from self._legend()
        yield "</svg>"

    def x(self, seconds: float) -> float:
        return LEFT + seconds / self.seconds * (WIDTH - LEFT - RIGHT)

    def y(self, lane: str) -> float:
        """The middle of a lane's bars."""
        return TOP + LANE * self.timeline.lanes.index(lane) + 46

    def colour(self, lane: str) -> str:
        return COLOURS[self.timeline.lanes.index(lane) % len(COLOURS)]

    def _grid(self) -> Iterable[str]:
        for half in range(int(self.seconds * 2) + 1):
            x = self.x(half / 2)
            yield line(x, TOP, x, self.bottom, GRID, 1.0 if half % 2 == 0 else 0.5)
            if half % 2 == 0:
                yield text(
                    x, self.bottom + 18, f"{half // 2} s", size=12, fill=FAINT, anchor="middle"
                )
        for row in range(len(self.timeline.lanes) + 1):
            y = TOP + LANE * row
            yield line(36, y, WIDTH - RIGHT, y, GRID, 1.0)

    def _lanes(self) -> Iterable[str]:
        timeline = self.timeline
        for lane in timeline.lanes:
            yield text(36, self.y(lane) + 5, lane, size=16, weight=600, fill=self.colour(lane))
        for lane, start, end in timeline.stops:
            yield from self._stop(lane, start, end)
        for lane, start, end in timeline.waits:
            y = self.y(lane)
            yield line(self.x(start), y, self.x(end), y, self.colour(lane), 3, opacity=0.35)
        for lease in timeline.leases:
            yield from self._lease(lease)
        for lane, at in timeline.writes:
            yield circle(self.x(at), self.y(lane))
        for lane, at in timeline.refusals:
            x, y = self.x(at), self.y(lane)
            yield from cross(x, y, 10)
            yield text(x, y + 33, "write refused", size=12.5, weight=600, fill=RED, anchor="middle")

    def _stop(self, lane: str, start: float, end: float) -> Iterable[str]:
        y, left, right = self.y(lane), self.x(start), self.x(end)
        yield (
            f'<rect x="{left:.1f}" y="{y - 42:.1f}" width="{right - left:.1f}" height="{LANE - 8}" '
            'fill="#f1f2f4"/>'
        )
        for at in (left, right):
            yield line(at, y - 42, at, y + LANE - 50, FAINT, 1, dash="3 3")
        yield text(left + 6, y - 27, "stopped (SIGSTOP)", size=12, fill=FAINT)
        yield text(right + 6, y - 27, "continued", size=12, fill=FAINT)

    def _lease(self, lease: Lease) -> Iterable[str]:
        y, colour = self.y(lease.lane), self.colour(lease.lane)
        left, right = self.x(lease.start), self.x(lease.end)
        yield bar(left, y, right, colour)
        if lease.believed_until > lease.end:
            far = self.x(lease.believed_until)
            yield bar(right, y, far, f"url(#{_hatch(colour)})", stroke=colour)
            yield text(far - 8, y - 22, "believes it holds", size=12, fill=colour, anchor="end")
        digits = "…" + str(lease.token)[self.shown_from :]
        middle, half = (left + right) / 2, len(digits) * 3.4
        # Two short leases in a row: the second token goes below the first.
        row = 0 if middle - half > self.labelled_to.get(lease.lane, 0.0) else 14
        self.labelled_to[lease.lane] = middle + half
        yield text(middle, y + 33 + row, digits, size=11, fill=colour, anchor="middle", mono=True)

    def _hand_overs(self) -> Iterable[str]:
        """A line from where a lease ran out to the one that took over."""
        for old in self.timeline.leases:
            later = [lease for lease in self.timeline.leases if lease.start >= old.end]
            if old.believed_until == old.end or not later:
                continue
            new = min(later, key=lambda lease: lease.start)
            x, away = self.x(new.start), 1 if self.y(new.lane) > self.y(old.lane) else -1
            begin = self.y(old.lane) + away * BAR / 2
            tip = self.y(new.lane) - away * BAR / 2
            yield line(x, begin, x, tip - away * 8, INK, 1.4, dash="5 3")
            head = f"M {x - 5:.1f} {tip - away * 8:.1f} h 10 l -5 {away * 8} z"
            yield f'<path d="{head}" fill="{INK}"/>'
            words = f"lease over: {new.lane} takes over"
            yield text(x - 10, tip - away * 12 + 4, words, size=12, fill=INK, anchor="end")

    def _legend(self) -> Iterable[str]:
        y, colour = self.bottom + 56.0, COLOURS[0]
        yield bar(36, y, 66, colour)
        yield text(74, y + 5, "holds the lock, token below", size=13)
        yield line(262, y, 292, y, colour, 3, opacity=0.35)
        yield text(300, y + 5, "waits in the queue", size=13)
        yield bar(434, y, 464, f"url(#{_hatch(colour)})", stroke=colour)
        yield text(472, y + 5, "only believes it holds", size=13)
        yield bar(630, y, 660, colour)
        yield circle(645, y)
        yield text(668, y + 5, "write admitted by the guard", size=13)
        yield from cross(872, y, 9)
        yield text(890, y + 5, "stale write refused by the guard", size=13)
        yield text(
            36,
            y + 40,
            f"Tokens are shown by their last digits; the first one is {self.lowest}.",
            size=12,
            fill=FAINT,
        )


def _first_difference(texts: Sequence[str]) -> int:
    """Where texts of equal length begin to differ."""
    columns = enumerate(zip(*texts, strict=False))
    return next((at for at, column in columns if len(set(column)) > 1), 0)


def _hatch(colour: str) -> str:
    return f"hatch-{colour[1:]}"


def text(
    x: float,
    y: float,
    words: str,
    *,
    size: float,
    fill: str = INK,
    weight: int = 400,
    anchor: str = "start",
    mono: bool = False,
) -> str:
    family = ' font-family="ui-monospace, Menlo, Consolas, monospace"' if mono else ""
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" font-weight="{weight}" '
        f'fill="{fill}" text-anchor="{anchor}"{family}>{escape(words)}</text>'
    )


def line(
    x1: float,
    y1: float,
    x2: float,
    y2: float,
    stroke: str,
    width: float,
    *,
    opacity: float = 1.0,
    dash: str = "",
) -> str:
    dashes = f' stroke-dasharray="{dash}"' if dash else ""
    return (
        f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{stroke}" '
        f'stroke-width="{width}" stroke-opacity="{opacity}"{dashes}/>'
    )


def bar(left: float, y: float, right: float, fill: str, *, stroke: str = "none") -> str:
    return (
        f'<rect x="{left:.1f}" y="{y - BAR / 2:.1f}" width="{max(2.0, right - left):.1f}" '
        f'height="{BAR}" rx="3" fill="{fill}" stroke="{stroke}"/>'
    )


def circle(x: float, y: float) -> str:
    return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="#ffffff" stroke="{INK}"/>'


def cross(x: float, y: float, size: float) -> Iterable[str]:
    # White beneath: it has to stand out from the hatching.
    for stroke, width in (("#ffffff", 9), (RED, 4.5)):
        for slope in (1, -1):
            yield line(x - size, y - size * slope, x + size, y + size * slope, stroke, width)
