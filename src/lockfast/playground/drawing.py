"""The timeline of a scene: a lane for each worker, and one for each resource."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from html import escape
from typing import Final

from lockfast.drawing.shapes import (
    BAR_SWATCH,
    HATCH,
    WAIT_SWATCH,
    Scale,
    bar,
    cross,
    dot,
    drawing,
    fault,
    hatched,
    link,
    pause,
    time_axis,
    until_now,
    waiting,
)
from lockfast.playground.record import Claim, Fault, Record, wall_ms
from lockfast.playground.resources import Resource

WINDOW_MS: Final = 30_000
_LEFT: Final = 78
_WIDTH: Final = 660
_LANE: Final = 38
_TOP: Final = 30
_BAR: Final = 20

LEGEND: Final = {
    text: drawing(26, 14, text, swatch, exact=True)
    for text, swatch in {
        "holds the lock, with its token": BAR_SWATCH,
        "only believes that it holds": hatched(0, 7, 26, 10),
        "waits": WAIT_SWATCH,
        "paused": pause(0, 7, 26, 14),
        "a write": dot("good", 13, 7, 5),
        "a stale write that was accepted": dot("bad", 13, 7, 6),
        "refused by the guard": cross(13, 7, 5),
    }.items()
}
"""A small drawing for each entry of the legend."""


def timeline(record: Record, workers: Sequence[str], resources: Sequence[Resource]) -> str:
    """Return the last seconds of a scene as SVG."""
    record.update()
    end = wall_ms()
    scale = Scale(end - WINDOW_MS, end, _LEFT, _WIDTH)
    lanes = [*workers, *(resource.name for resource in resources)]
    y_of = {lane: _TOP + _LANE // 2 + at * _LANE for at, lane in enumerate(lanes)}
    height = _TOP + _LANE * len(lanes) + 8
    series_of = {worker: at for at, worker in enumerate(workers)}
    parts = [
        HATCH,
        *_lanes(scale, y_of, height),
        *_pauses(record.faults, scale, y_of),
        *_claims(record.claims, scale, y_of, series_of),
        *_writes(resources, scale, y_of, record),
        *_faults(record.faults, scale, y_of),
    ]
    label = "what each worker did in the last 30 seconds; the tables below say it in words"
    return drawing(_LEFT + _WIDTH + 14, height, label, "".join(parts))


def _lanes(scale: Scale, y_of: Mapping[str, int], height: int) -> Iterator[str]:
    for lane, y in y_of.items():
        yield f'<line class="axis" x1="{_LEFT}" x2="{_LEFT + _WIDTH}" y1="{y}" y2="{y}"/>'
        yield f'<text x="8" y="{y + 4}">{escape(lane)}</text>'
    yield from time_axis(scale, _TOP - 8, height - 4, per_second=1000, label=until_now)


def _claims(
    claims: Sequence[Claim], scale: Scale, y_of: Mapping[str, int], series_of: Mapping[str, int]
) -> Iterator[str]:
    for claim in list(claims):
        y = y_of.get(claim.worker)
        ended = claim.ended_ms if claim.ended_ms is not None else scale.end
        believed = ended
        if claim.believed and claim.how != "released":
            believed = claim.believed_until_ms if claim.believed_until_ms else scale.end
        if y is None or max(ended, believed) < scale.start:
            continue
        if claim.asked_ms is not None:
            until = claim.granted_ms if claim.granted_ms is not None else ended
            yield waiting(scale.x(claim.asked_ms), scale.x(until), y)
        if claim.granted_ms is None:
            continue
        x, width = _span(scale, claim.granted_ms, ended)
        hint = f"{claim.worker} holds the lock with token {claim.number}"
        if ended > scale.start:
            yield bar(series_of[claim.worker], x, y, width, _BAR, hint, str(claim.number))
        if believed > ended:
            x, width = _span(scale, ended, believed)
            yield hatched(x, y, width, _BAR, f"{claim.worker} only believes that it holds")


def _span(scale: Scale, begin: float, end: float) -> tuple[float, float]:
    x = scale.x(begin)
    return x, max(2.0, scale.x(end) - x)


def _pauses(faults: Sequence[Fault], scale: Scale, y_of: Mapping[str, int]) -> Iterator[str]:
    for one in list(faults):
        ended = one.ended_ms if one.ended_ms is not None else scale.end
        if one.what == "paused" and ended > scale.start:
            x, width = _span(scale, one.began_ms, ended)
            yield pause(x, y_of[one.worker], width, _LANE - 4)


def _faults(faults: Sequence[Fault], scale: Scale, y_of: Mapping[str, int]) -> Iterator[str]:
    for one in list(faults):
        if one.began_ms > scale.start:
            yield fault(scale.x(one.began_ms), y_of[one.worker], one.what)


def _writes(
    resources: Sequence[Resource], scale: Scale, y_of: Mapping[str, int], record: Record
) -> Iterator[str]:
    for resource in resources:
        y = y_of[resource.name]
        for write in list(resource.writes):
            if write.at_ms < scale.start:
                continue
            x = scale.x(write.at_ms)
            hint = f"{write.worker} writes {write.value} with token {record.number_of(write.token)}"
            yield link(x, y_of[write.worker], y)
            if write.refused:
                yield cross(x, y, 7, f"{hint}: refused")
            elif write.stale:
                yield dot("bad", x, y, 8, f"{hint}: stale, and it was accepted")
            else:
                yield dot("good", x, y, 5, hint)
