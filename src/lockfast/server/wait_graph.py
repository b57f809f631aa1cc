"""The wait graph for people: every lock with waiters, and an edge for each waiter."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final

from lockfast.core import commands as c
from lockfast.core.modes import MODES_OF_KIND

PAGE: Final = 500
LOCKS_MAX: Final = 1000


async def wait_graph(send: Callable[[c.Command], Awaitable[c.Reply]]) -> dict[str, Any]:
    """Read the locks with waiters, and return nodes (actors) and edges."""
    edges: list[dict[str, Any]] = []
    nodes: dict[str, dict[str, Any]] = {}
    locks = 0
    for kind in MODES_OF_KIND:
        after = ""
        while locks < LOCKS_MAX:
            reply = await send(c.Listing(kind, "", after, PAGE))
            if not isinstance(reply, c.ListingReply) or not reply.resources:
                break
            for view in reply.resources:
                if view.waiting_count:
                    locks += 1
                    full = await send(c.Inspect(kind, view.name, PAGE))
                    if isinstance(full, c.ResourceView):
                        _add(full, nodes, edges)
            if not reply.more:
                break
            after = reply.resources[-1].name
    return {"nodes": list(nodes.values()), "edges": edges, "complete": locks < LOCKS_MAX}


def _add(
    view: c.ResourceView, nodes: dict[str, dict[str, Any]], edges: list[dict[str, Any]]
) -> None:
    holders = [_node(claim, nodes) for claim in view.holders]
    for position, claim in enumerate(view.waiting, 1):
        edges.append(
            {
                "from": _node(claim, nodes),
                "to": holders,
                "kind": view.kind,
                "name": view.name,
                "position": position,
                "waiting_ms": claim.for_ms,
            }
        )


def _node(claim: c.ClaimView, nodes: dict[str, dict[str, Any]]) -> str:
    name = claim.actor or f"{claim.session}/{claim.n}"
    nodes.setdefault(name, {"id": name, "owner": claim.owner, "session": claim.session})
    return name
