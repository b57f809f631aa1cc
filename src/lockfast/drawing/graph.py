"""Who waits for which lock, and who holds it: boxes in columns, arrows from right to left.

A box is a lock or an actor. An arrow leads from an actor to the lock it waits for, and from a lock
to its holders. Boxes that wait for nothing are in the first column. A cycle is drawn as a loop of
two rows, in front of the actors that wait for it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from html import escape
from typing import Final, NamedTuple

from lockfast.drawing.shapes import drawing

_BOX: Final = 200
_HEIGHT: Final = 34
_GAP_X: Final = 76
_GAP_Y: Final = 14
_RING_GAP_Y: Final = 40
_EDGE: Final = 10
_ASIDE: Final = 5
"""An arrow's distance from the middle, so that two between the same boxes do not overlap."""
_CHARACTERS: Final = 27


class Node(NamedTuple):
    """A box."""

    id: str
    label: str
    is_lock: bool
    stuck: bool = False
    """Part of a deadlock."""
    link: str = ""
    hint: str = ""


class Edge(NamedTuple):
    """An arrow."""

    source: str
    target: str
    waits: bool
    """From an actor to a lock; False for the arrow from a lock to its holder."""
    stuck: bool = False
    label: str = ""
    hint: str = ""


class _Spot(NamedTuple):
    """The centre of a box."""

    x: float
    y: float


LEGEND: Final[Mapping[str, str]] = {
    "waits for": '<path class="edge waits" d="M2 7h22"/>',
    "is held by": '<path class="edge" d="M2 7h22"/>',
    "deadlock": '<path class="edge stuck" d="M2 7h22"/>',
}


def graph(nodes: Sequence[Node], edges: Sequence[Edge], label: str) -> str:
    """Return the picture, in its own size."""
    targets: dict[str, list[str]] = {node.id: [] for node in nodes}
    for edge in edges:
        targets[edge.source].append(edge.target)
    stuck = {node.id for node in nodes if node.stuck}
    spots: dict[str, _Spot] = {}
    top = float(_EDGE)
    for part in _parts(targets):
        placed = _placed({name: targets[name] for name in part}, stuck, top)
        spots.update(placed)
        top = max(spot.y for spot in placed.values()) + _HEIGHT / 2 + 2 * _GAP_Y
    width = max((spot.x for spot in spots.values()), default=0) + _BOX / 2 + _EDGE
    height = max((spot.y for spot in spots.values()), default=0) + _HEIGHT / 2 + _EDGE
    parts = [*(_arrow(edge, spots) for edge in edges), *(_box(node, spots) for node in nodes)]
    return drawing(width, height, label, "".join(parts), exact=True)


def _parts(targets: Mapping[str, Sequence[str]]) -> Iterator[list[str]]:
    """Yield the groups of connected boxes, in the order of their first boxes."""
    beside: dict[str, list[str]] = {name: list(found) for name, found in targets.items()}
    for name, found in targets.items():
        for other in found:
            beside[other].append(name)
    seen: set[str] = set()
    for first in targets:
        if first in seen:
            continue
        part, waiting = [], [first]
        seen.add(first)
        while waiting:
            name = waiting.pop()
            part.append(name)
            fresh = [other for other in beside[name] if other not in seen]
            seen.update(fresh)
            waiting += fresh
        yield sorted(part, key=list(targets).index)


def _placed(targets: Mapping[str, Sequence[str]], stuck: set[str], top: float) -> dict[str, _Spot]:
    ring = _ring(targets, stuck)
    half = (len(ring) + 1) // 2
    columns = {name: min(at, len(ring) - 1 - at) for at, name in enumerate(ring)}
    first_y = top + _HEIGHT / 2
    rows = (first_y, first_y + _HEIGHT + _RING_GAP_Y)
    spots = {name: _spot(columns[name], rows[at >= half]) for at, name in enumerate(ring)}
    below_ring = rows[1] + _HEIGHT + _GAP_Y
    free_y = dict.fromkeys(columns.values(), below_ring)
    for name, column in _columns(targets, columns).items():
        columns.setdefault(name, column)
    for column in range(max(columns.values()) + 1):
        # Place boxes beside what they point at, so that few arrows cross.
        def height_of_targets(name: str) -> float:
            known = [spots[target].y for target in targets[name] if target in spots]
            return sum(known) / len(known) if known else 0.0

        names = [name for name in targets if columns[name] == column and name not in spots]
        for name in sorted(names, key=height_of_targets):
            y = max(free_y.get(column, first_y), height_of_targets(name))
            spots[name] = _spot(column, y)
            free_y[column] = y + _HEIGHT + _GAP_Y
    return spots


def _spot(column: int, y: float) -> _Spot:
    return _Spot(_EDGE + _BOX / 2 + column * (_BOX + _GAP_X), y)


def _ring(targets: Mapping[str, Sequence[str]], stuck: set[str]) -> list[str]:
    """Return one cycle among the stuck boxes; [] if there is none."""
    first = next((name for name in targets if name in stuck), None)
    way: list[str] = []
    while first is not None and first not in way:
        way.append(first)
        first = next((other for other in targets[first] if other in stuck), None)
    return way[way.index(first) :] if first is not None else []


def _columns(targets: Mapping[str, Sequence[str]], given: Mapping[str, int]) -> dict[str, int]:
    """Return the length of the longest path from each box to a given one or to an end.

    The arrow that closes a cycle does not count. Iterative, because a chain of waiters may be
    longer than Python's stack.
    """
    found = dict(given)
    under_way: set[str] = set()
    for first in targets:
        ways: list[tuple[str, Iterator[str]]] = [(first, iter(targets[first]))]
        if first in found:
            continue
        under_way.add(first)
        while ways:
            name, rest = ways[-1]
            following = next(
                (other for other in rest if other not in found and other not in under_way), None
            )
            if following is not None:
                under_way.add(following)
                ways.append((following, iter(targets[following])))
                continue
            ways.pop()
            under_way.discard(name)
            behind = [found[other] + 1 for other in targets[name] if other in found]
            found[name] = max(behind, default=0)
    return found


def _box(node: Node, spots: Mapping[str, _Spot]) -> str:
    x, y = spots[node.id].x - _BOX / 2, spots[node.id].y
    label = node.label
    if len(label) > _CHARACTERS:
        label = f"{label[: _CHARACTERS // 2]}…{label[-(_CHARACTERS // 2) + 1 :]}"
    round_ = _HEIGHT / 2 if node.is_lock else 5
    inside = (
        f'<rect x="{x:.1f}" y="{y - _HEIGHT / 2:.1f}" width="{_BOX}" height="{_HEIGHT}" '
        f'rx="{round_:g}"/><text x="{x + _BOX / 2:.1f}" y="{y + 4:.1f}" text-anchor="middle">'
        f"{escape(label)}</text><title>{escape(node.hint or node.label)}</title>"
    )
    if node.link:
        inside = f'<a href="{escape(node.link)}">{inside}</a>'
    kind = "lock" if node.is_lock else "actor"
    return f'<g class="node {kind}{" stuck" * node.stuck}">{inside}</g>'


def _arrow(edge: Edge, spots: Mapping[str, _Spot]) -> str:
    source, target = spots[edge.source], spots[edge.target]
    aside = _ASIDE if edge.waits else -_ASIDE
    if abs(source.x - target.x) > _BOX:
        way = -1 if source.x > target.x else 1
        x1, y1 = source.x + way * _BOX / 2, source.y + aside
        x2, y2 = target.x - way * _BOX / 2, target.y + aside
        bend = way * max(30.0, abs(x1 - x2) / 2)
        line = f"M{x1:.1f} {y1:.1f}C{x1 + bend:.1f} {y1:.1f} {x2 - bend:.1f} {y2:.1f} "
        line += f"{x2 - way * 7:.1f} {y2:.1f}"
        tip = f"M{x2:.1f} {y2:.1f}l{-way * 8} -4.5v9z"
        # Near the source, where the arrows of several waiters are still apart.
        text_x, text_y = x1 + way * 10, y1 - 5
    else:
        way = -1 if source.y > target.y else 1
        x1, y1 = source.x + 4 * aside, source.y + way * _HEIGHT / 2
        x2, y2 = target.x + 4 * aside, target.y - way * _HEIGHT / 2
        line = f"M{x1:.1f} {y1:.1f}L{x2:.1f} {y2 - way * 7:.1f}"
        tip = f"M{x2:.1f} {y2:.1f}l-4.5 {-way * 8}h9z"
        text_x, text_y = x1 + 10, (y1 + y2) / 2 + 4
    stuck = " stuck" * edge.stuck
    text = (
        f'<text class="dim beside" x="{text_x:.1f}" y="{text_y:.1f}" text-anchor="middle">'
        f"{escape(edge.label)}</text>"
        if edge.label
        else ""
    )
    return (
        f'<g><path class="edge{" waits" * edge.waits}{stuck}" d="{line}"/>'
        f'<path class="arrow{stuck}" d="{tip}"/>{text}<title>{escape(edge.hint)}</title></g>'
    )
