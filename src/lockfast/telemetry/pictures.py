"""Pictures of claims and wait graphs for reports and the dashboard, built with `drawing/`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from lockfast.core.modes import LOCK, SEMAPHORE
from lockfast.drawing.graph import Edge, Node, graph
from lockfast.drawing.shapes import Colours, isolated, span_label
from lockfast.drawing.timeline import Strip, timeline
from lockfast.flow.wait_graph import Waiter, WaitGraph, WaitsFor
from lockfast.telemetry.spans import Span

NODES_MAX: Final = 120
"""The most boxes in a wait graph; more would be unreadable."""


def title_of(kind: str, name: str) -> str:
    return name if kind == LOCK else f"{kind} {name}"


def lock_timeline(
    kind: str, name: str, spans: Sequence[Span], start: float, end: float, **options: Any
) -> tuple[str, Colours]:
    """Return the picture of one lock's claims, and the colours of their owners."""
    colours = Colours()
    strips = [
        Strip(
            colours.of(span.owner),
            span.asked,
            span.granted,
            span.ended,
            span.was_lost,
            span.how == "gave_up",
            hint_of(span),
        )
        for span in spans
    ]
    return timeline(title_of(kind, name), strips, start, end, **options), colours


def hint_of(span: Span) -> str:
    """Return a one-line summary of a claim."""
    parts = [isolated(span.owner)]
    if span.token is not None and span.kind != SEMAPHORE:
        parts.append(f"token {span.token}")
    if span.waited:
        parts.append(f"waited {span_label(span.waited)}")
    if span.held is not None:
        parts.append(f"held {span_label(span.held)}")
    if span.how:
        parts.append(isolated(span.outcome))
    return ", ".join(parts)


def wait_picture(
    waits: WaitGraph, link_of: Callable[[str, str], str] | None = None
) -> tuple[str, int]:
    """Return the picture of a wait graph, and how many waits it leaves out.

    `link_of(kind, name)` gives the address of a lock's page.
    """
    nodes: dict[str, Node] = {}
    edges: dict[tuple[str, str], Edge] = {}
    places: dict[tuple[str, str], list[Waiter]] = {}
    for wait in waits.edges:
        line = places.setdefault((wait.kind, wait.name), [])
        if wait.waiter not in line:
            line.append(wait.waiter)
    left_out = 0
    # Deadlocks first: they are what readers look for.
    for wait in sorted(waits.edges, key=lambda wait: not wait.deadlocked):
        if len(nodes) >= NODES_MAX:
            left_out += 1
            continue
        lock = _lock_node(wait, link_of)
        waiter, blocker = _actor_node(wait.waiter), _actor_node(wait.blocker)
        for node in (lock, waiter, blocker) if wait.blocker_holds else (lock, waiter):
            known = nodes.setdefault(node.id, node)
            if wait.deadlocked:
                nodes[node.id] = known._replace(stuck=True)
        position = places[wait.kind, wait.name].index(wait.waiter) + 1
        hint = (
            f"{isolated(wait.waiter.owner)} has waited {span_label(wait.seconds)} for "
            f"{isolated(title_of(wait.kind, wait.name))}, position {position}"
        )
        _join(edges, Edge(waiter.id, lock.id, True, wait.deadlocked, f"{position}.", hint))
        if wait.blocker_holds:
            lock_name, holder = title_of(wait.kind, wait.name), wait.blocker.owner
            held = f"{isolated(lock_name)} is held by {isolated(holder)}"
            _join(edges, Edge(lock.id, blocker.id, False, wait.deadlocked, "", held))
    stuck = sum(node.stuck and not node.is_lock for node in nodes.values())
    label = f"wait graph: {sum(not node.is_lock for node in nodes.values())} actors"
    if stuck:
        label += f", {stuck} of them deadlocked"
    return graph(list(nodes.values()), list(edges.values()), label), left_out


def _join(edges: dict[tuple[str, str], Edge], edge: Edge) -> None:
    known = edges.setdefault((edge.source, edge.target), edge)
    if edge.stuck:
        edges[edge.source, edge.target] = known._replace(stuck=True)


def _lock_node(wait: WaitsFor, link_of: Callable[[str, str], str] | None) -> Node:
    label = title_of(wait.kind, wait.name)
    link = link_of(wait.kind, wait.name) if link_of is not None else ""
    return Node(f"lock {wait.kind} {wait.name}", label, True, link=link)


def _actor_node(waiter: Waiter) -> Node:
    hint = f"{isolated(waiter.owner)}, {waiter.actor or 'retained'}, session {waiter.session}"
    return Node(f"actor {waiter.session} {waiter.actor}", waiter.owner, False, hint=hint)
