"""Timelines and graphs: hostile text stays text, and labels do not overlap."""

from __future__ import annotations

from itertools import combinations, pairwise
from xml.etree import ElementTree

import pytest

from lockfast.drawing.graph import Edge, Node, graph
from lockfast.drawing.timeline import Strip, timeline
from lockfast.flow.wait_graph import Waiter, WaitGraph, WaitsFor
from lockfast.telemetry.pictures import NODES_MAX, wait_picture

SVG = "{http://www.w3.org/2000/svg}"
HOSTILE = "\"><script>alert(1)</script>\u202e&amp;' onload=x"


def chain(length: int) -> WaitGraph:
    """Each actor holds a lock and waits for the lock of the next."""
    actors = [Waiter(f"web-{at}", f"thread-{at}", f"s{at}") for at in range(length + 1)]
    return WaitGraph(
        tuple(
            WaitsFor(waiter, blocker, "lock", f"a/{at}", "exclusive", 1.0, True, 7, False)
            for at, (waiter, blocker) in enumerate(pairwise(actors))
        )
    )


def boxes(svg: str) -> list[tuple[float, float, float, float]]:
    found = ElementTree.fromstring(svg).iter(f"{SVG}rect")
    return [
        tuple(float(one.attrib[name]) for name in ("x", "y", "width", "height"))  # type: ignore[misc]
        for one in found
    ]


def test_hostile_names_stay_text() -> None:
    strip = Strip(0, 1.0, 2.0, 3.0, True, False, HOSTILE)
    nodes = [Node("a", HOSTILE, True, link="#/" + HOSTILE, hint=HOSTILE), Node("b", HOSTILE, False)]
    edges = [Edge("b", "a", True, label=HOSTILE, hint=HOSTILE)]
    for svg in (timeline(HOSTILE, [strip], 0, 5), graph(nodes, edges, HOSTILE)):
        root = ElementTree.fromstring(svg)
        assert not list(root.iter(f"{SVG}script"))
        assert HOSTILE in "".join(root.itertext())
        assert not [name for one in root.iter() for name in one.attrib if name.startswith("on")]


def test_drawings_need_no_style_attribute() -> None:
    """The dashboard's content security policy allows none."""
    svg = timeline("a", [Strip(0, 1, 2, 3, True, False, "")], 0, 5) + wait_picture(chain(3))[0]
    assert "style=" not in svg


@pytest.mark.parametrize("stuck", [2, 3, 5])
def test_a_cycle_is_a_loop_and_nothing_overlaps(stuck: int) -> None:
    nodes, edges = [], []
    for at in range(stuck):
        nodes += [Node(f"actor{at}", f"a{at}", False, True), Node(f"lock{at}", "l", True, True)]
        edges += [
            Edge(f"actor{at}", f"lock{(at + 1) % stuck}", True, True),
            Edge(f"lock{at}", f"actor{at}", False, True),
        ]
    for at in range(4):
        nodes.append(Node(f"behind{at}", "b", False))
        edges.append(Edge(f"behind{at}", "lock0", True))
    svg = graph(nodes, edges, "deadlock")
    found = boxes(svg)
    assert len(found) == len(nodes)
    for (x, y, w, h), (left, top, wide, high) in combinations(found, 2):
        assert x + w <= left or left + wide <= x or y + h <= top or top + high <= y
    ring = {y for _, y, _, _ in found[: 2 * stuck]}
    assert len(ring) == 2
    assert svg.count('class="edge waits stuck"') == stuck


def test_a_long_chain_is_drawn_in_part_and_says_so() -> None:
    svg, left_out = wait_picture(chain(2000))
    assert left_out == 2000 - svg.count('class="edge waits"') > 0
    assert len(boxes(svg)) <= NODES_MAX + 2


def test_deadlocks_are_drawn_first() -> None:
    one, other = Waiter("a", "t", "s1"), Waiter("b", "t", "s2")
    cycle = (
        WaitsFor(one, other, "lock", "x", "exclusive", 1.0, True, 1, True),
        WaitsFor(other, one, "lock", "y", "exclusive", 1.0, True, 2, True),
    )
    svg, _ = wait_picture(WaitGraph((*chain(2000).edges, *cycle)))
    assert svg.count('class="node actor stuck"') == 2
    assert "2 of them deadlocked" in svg
