"""A wait graph as text, DOT, Mermaid, JSON or a page with a picture."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any, Final

from lockfast.drawing.graph import LEGEND
from lockfast.drawing.page import document, legend
from lockfast.flow.wait_graph import Waiter, WaitGraph, WaitsFor
from lockfast.telemetry.pictures import title_of, wait_picture

DEPTH_MAX: Final = 20
"""Deeper levels of a tree are not indented further."""


def as_text(graph: WaitGraph) -> str:
    """Return the graph as trees: below each blocker, those that wait for it."""
    return "\n".join(tree_lines(graph))


def tree_lines(graph: WaitGraph) -> Iterator[str]:
    """Yield one line per waiter, indented below the claim that it directly waits for."""
    below: dict[Waiter, list[WaitsFor]] = {}
    queued = {(edge.waiter, edge.kind, edge.name) for edge in graph.edges if not edge.blocker_holds}
    for edge in graph.edges:
        # A claim behind another waiter is shown below that waiter, not below the holder too.
        if not edge.blocker_holds or (edge.waiter, edge.kind, edge.name) not in queued:
            below.setdefault(edge.blocker, []).append(edge)
    waiting = {edge.waiter for edge in graph.edges}
    shown: set[Waiter] = set()
    roots = [each for each in graph.waiters if each not in waiting]
    # What no root reaches consists of cycles and of the claims that wait for them.
    for root in (*roots, *graph.waiters):
        if root not in shown:
            yield from _tree(below, root, shown)


def _tree(below: dict[Waiter, list[WaitsFor]], root: Waiter, shown: set[Waiter]) -> Iterator[str]:
    shown.add(root)
    yield label_of(root)
    # An explicit stack: a queue of 1,000 claims is a chain of that depth.
    stack = [(edge, 1) for edge in reversed(below.get(root, []))]
    while stack:
        edge, depth = stack.pop()
        again = edge.waiter in shown
        mark = ", DEADLOCK" if edge.deadlocked else ", see above" if again else ""
        yield (
            f"{'  ' * min(depth, DEPTH_MAX)}└ {label_of(edge.waiter)} waits "
            f"{edge.seconds:.1f} s for {_lock(edge)}{mark}"
        )
        if not again:
            shown.add(edge.waiter)
            stack += [(next_, depth + 1) for next_ in reversed(below.get(edge.waiter, []))]


def as_dot(graph: WaitGraph) -> str:
    """Return the graph in Graphviz's DOT language."""
    ids = {each: f"n{number}" for number, each in enumerate(graph.waiters)}
    lines = ["digraph waits {", '  rankdir="LR";', '  node [shape="box"];']
    lines += [f"  {ids[each]} [label={_quoted(label_of(each))}];" for each in graph.waiters]
    for edge in graph.edges:
        style = ', color="red"' if edge.deadlocked else ""
        style += "" if edge.blocker_holds else ', style="dashed"'
        lines.append(
            f"  {ids[edge.waiter]} -> {ids[edge.blocker]} [label={_quoted(_lock(edge))}{style}];"
        )
    return "\n".join([*lines, "}"])


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def as_mermaid(graph: WaitGraph) -> str:
    """Return the graph in Mermaid's language, which GitHub and GitLab render."""
    ids = {each: f"n{number}" for number, each in enumerate(graph.waiters)}
    lines = ["flowchart LR"]
    lines += [f'  {ids[each]}["{_entities(label_of(each))}"]' for each in graph.waiters]
    deadlocked = []
    for number, edge in enumerate(graph.edges):
        arrow = "-->" if edge.blocker_holds else "-.->"
        label = _entities(_lock(edge))
        lines.append(f'  {ids[edge.waiter]} {arrow}|"{label}"| {ids[edge.blocker]}')
        if edge.deadlocked:
            deadlocked.append(str(number))
    if deadlocked:
        lines.append(f"  linkStyle {','.join(deadlocked)} stroke:red")
    return "\n".join(lines)


def _entities(text: str) -> str:
    """Escape everything that Mermaid or HTML could interpret, as character references."""
    return "".join(c if c.isalnum() or c in " -_./:,()" else f"#{ord(c)};" for c in text)


def as_html(graph: WaitGraph) -> str:
    """Return the graph as an HTML page with a picture."""
    picture, left_out = wait_picture(graph)
    more = f"<p>{left_out} more waits are not drawn.</p>" if left_out else ""
    body = f'{legend(LEGEND)}<div class="scroll">{picture}</div>{more}'
    return document("Who waits for whom", body if graph.edges else "<p>Nobody waits.</p>")


def as_json(graph: WaitGraph) -> str:
    """Return the graph as one JSON document."""
    return json.dumps(as_plain(graph), separators=(",", ":"))


def as_plain(graph: WaitGraph) -> dict[str, Any]:
    edges = []
    for edge in graph.edges:
        plain = edge._asdict()
        plain["waiter"], plain["blocker"] = edge.waiter._asdict(), edge.blocker._asdict()
        edges.append(plain)
    return {"waiters": [each._asdict() for each in graph.waiters], "edges": edges}


def label_of(waiter: Waiter) -> str:
    return f"{waiter.owner} ({waiter.actor})" if waiter.actor else f"{waiter.owner} (retained)"


def _lock(edge: WaitsFor) -> str:
    return title_of(edge.kind, edge.name)


FORMATS: Final[dict[str, Callable[[WaitGraph], str]]] = {
    "text": as_text,
    "dot": as_dot,
    "mermaid": as_mermaid,
    "json": as_json,
    "html": as_html,
}
