"""Who waits for whom, in the whole store."""

from __future__ import annotations

from typing import NamedTuple

from lockfast.core.commands import ClaimView, Inspect, Listing, ListingReply, ResourceView
from lockfast.core.deadlock import blockers_of, find_cycles, waits_at
from lockfast.core.modes import MODES_OF_KIND
from lockfast.flow.deadlock import LINE_MAX, PAGE, Send


class Waiter(NamedTuple):
    """One task or thread of one client."""

    owner: str
    actor: str
    """"" for a client that retains the lock between its users."""
    session: str


class WaitsFor(NamedTuple):
    """One claim that waits, and one that blocks it."""

    waiter: Waiter
    blocker: Waiter
    kind: str
    name: str
    mode: str
    """The mode that the waiter asks for."""
    seconds: float
    """How long it has been waiting."""
    blocker_holds: bool
    """False if the blocker waits too, ahead in the queue."""
    blocker_token: int | None
    deadlocked: bool
    """Both are part of a deadlock."""


class WaitGraph(NamedTuple):
    """Who waits for whom.

    There is an edge from each waiting claim to each holder that blocks it, and to the nearest
    blocking claim ahead of it in the queue.
    """

    edges: tuple[WaitsFor, ...]

    @property
    def waiters(self) -> tuple[Waiter, ...]:
        """Everybody who waits or blocks, sorted."""
        found = {each for edge in self.edges for each in (edge.waiter, edge.blocker)}
        return tuple(sorted(found))


async def wait_graph(send: Send, prefix: str = "") -> WaitGraph:
    """Read every queue whose lock's name begins with `prefix`.

    The queues are read one after another, not in one snapshot, so an edge may be gone by the
    time the graph is returned. A deadlock does not change while it is read.
    """
    views: list[ResourceView] = []
    for kind in MODES_OF_KIND:
        after = ""
        while True:
            page = await send(Listing(kind, prefix, after, PAGE))
            if not isinstance(page, ListingReply):
                break
            for view in page.resources:
                if view.waiting_count or any(claim.wants for claim in view.holders):
                    whole = await send(Inspect(kind, view.name, LINE_MAX))
                    if isinstance(whole, ResourceView):
                        views.append(whole)
            if not page.more:
                break
            after = page.resources[-1].name
    return graph_of(views)


def graph_of(views: list[ResourceView]) -> WaitGraph:
    """Return the graph of these queues."""
    stuck = {actor for cycle in find_cycles(views) for actor in cycle.actors}
    edges: list[WaitsFor] = []
    for view in views:
        holders = {claim[:2] for claim in view.holders}
        for wait in waits_at(view):
            blockers = blockers_of(wait)
            held = [claim for claim in blockers if claim[:2] in holders]
            queued = [claim for claim in blockers if claim[:2] not in holders]
            edges += [
                WaitsFor(
                    _waiter(wait.claim),
                    _waiter(blocker),
                    wait.place.kind,
                    wait.place.name,
                    wait.place.mode,
                    wait.claim.for_ms / 1000,
                    blocker[:2] in holders,
                    blocker.token or None,
                    wait.claim.actor in stuck and blocker.actor in stuck,
                )
                for blocker in (*held, *queued[-1:])
            ]
    return WaitGraph(tuple(edges))


def _waiter(claim: ClaimView) -> Waiter:
    return Waiter(claim.owner, claim.actor, claim.session)
