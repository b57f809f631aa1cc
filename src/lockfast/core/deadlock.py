"""Find deadlocks: a pure function of the holders and queues of resources.

The nodes of the wait-for graph are actors (tasks or threads), not sessions: tasks of one
client may wait for each other's locks without a deadlock. A waiter waits for every
conflicting claim ahead of it, held or waiting, and for the first claim in the queue that cannot
be granted: the queue stops there, whatever the modes behind it. The algorithm is graph reduction:
remove each actor that can proceed, assume that it releases all it holds, and repeat. The actors
that remain are deadlocked. Claims without an actor are retained claims, which clients give up
when others wait, so they block nobody once they are granted.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from lockfast.core.commands import HOLDING, ClaimView, Place, ResourceView, Witness
from lockfast.core.modes import CONFLICTS, PERMIT


class Cycle(NamedTuple):
    """A deadlock and how to break it."""

    victim: ClaimView
    """The claim to cancel: the one of lowest priority, then the youngest."""
    passing: tuple[ClaimView, ClaimView] | None
    """A claim that may move ahead of a reservation instead, and that reservation."""
    witnesses: tuple[Witness, ...]
    lines: tuple[str, ...]
    """One readable line per waiting claim: owner, resource and the claims ahead."""
    actors: frozenset[str]


class Wait(NamedTuple):
    """One claim that waits at one resource."""

    claim: ClaimView
    place: Place
    resource: ResourceView
    at: int
    """Its position in the queue; -1 for a holder that is converting."""

    @property
    def ahead(self) -> list[ClaimView]:
        """Return all claims ahead of it at this resource, holders first."""
        holders, waiting = self.resource.holders, self.resource.waiting
        others = [other for other in holders if other is not self.claim]
        return [*others, *waiting[: max(0, self.at)]]


def find_cycles(resources: Iterable[ResourceView]) -> list[Cycle]:
    """Return the deadlocks among these resources, at most one per group of actors."""
    waits = [wait for resource in resources for wait in waits_at(resource)]
    return [_cycle(group, own) for group, own in _groups(waits)]


def _groups(waits: Sequence[Wait]) -> list[tuple[frozenset[str], list[Wait]]]:
    """Return groups of actors that wait only for each other, with all their waits."""
    stuck = _reduce(waits)
    edges: dict[str, set[str]] = {}
    for wait in waits:
        if wait.claim.actor in stuck:
            edges.setdefault(wait.claim.actor, set()).update(
                other.actor for other in blockers_of(wait, stuck) if other.actor
            )
    found = []
    for group in _knots(edges):
        own = [wait for wait in waits if wait.claim.actor in group]
        if len(group) == len(stuck):
            found.append((group, own))
        else:
            # The group may lack permits that actors outside it hold. Then the group alone is
            # not deadlocked, and proceeds when those actors release. Claims without an actor
            # belong to no group, but may stop a queue in which the group waits.
            found += _groups([wait for wait in waits if wait.claim.actor in {*group, ""}])
    return found


def waits_at(resource: ResourceView) -> list[Wait]:
    """Return the claims that wait at a resource, conversions first."""
    found = []
    for claim in resource.holders:
        if claim.wants:
            place = _place_at(claim, resource)._replace(mode=claim.wants)
            found.append(Wait(claim, place, resource, -1))
    for at, claim in enumerate(resource.waiting):
        found.append(Wait(claim, _place_at(claim, resource), resource, at))
    return found


def _place_at(claim: ClaimView, resource: ResourceView) -> Place:
    for place in claim.places:
        if place.kind == resource.kind and place.name == resource.name:
            return place
    raise AssertionError(f"a claim at {resource.name!r} has no place there")


def _reduce(waits: Sequence[Wait]) -> set[str]:
    """Return the actors that remain after removing all that can proceed.

    Each queue is scanned from its head, so one pass removes all actors that can proceed one
    after another, however long the queue is.
    """
    waits_of: dict[str, int] = {}
    lines: dict[tuple[str, str], list[Wait]] = {}
    for wait in waits:
        actor = wait.claim.actor
        if actor:
            waits_of[actor] = waits_of.get(actor, 0) + 1
        lines.setdefault((wait.resource.kind, wait.resource.name), []).append(wait)
    stuck = set(waits_of)
    fitting: set[tuple[str, str, str, int]] = set()
    moved = True
    while moved:
        moved = False
        for line in lines.values():
            ahead = _Ahead(line[0].resource, stuck)
            for wait in line:
                claim = wait.claim
                if not claim.actor:
                    ahead.stop_at(wait)
                    continue
                if claim.actor not in stuck:
                    continue
                key = (wait.place.kind, wait.place.name, claim.session, claim.n)
                if key not in fitting and ahead.leaves_room_for(wait):
                    fitting.add(key)
                    moved = True
                    waits_of[claim.actor] -= 1
                    if not waits_of[claim.actor]:
                        stuck.discard(claim.actor)
                        continue
                if key not in fitting:
                    ahead.stop_at(wait)
                if wait.at >= 0:
                    ahead.add(wait.place)
    return stuck


class _Ahead:
    """Counts what stuck actors hold or request at one resource, from the head on."""

    def __init__(self, resource: ResourceView, stuck: set[str]) -> None:
        self._limit = resource.limit
        self._counts: dict[str, int] = {}
        self._converting = False
        self._stopped = False
        """A claim in the queue cannot be granted, so none behind it is."""
        for claim in resource.holders:
            if claim.actor in stuck:
                self.add(_place_at(claim, resource))
                self._converting |= bool(claim.wants)

    def add(self, place: Place) -> None:
        share = place.weight if place.mode == PERMIT else 1
        self._counts[place.mode] = self._counts.get(place.mode, 0) + share

    def stop_at(self, wait: Wait) -> None:
        """Let nothing behind this claim pass, if it waits in the queue and cannot be granted."""
        if wait.at >= 0 and not self.leaves_room_for(wait):
            self._stopped = True

    def leaves_room_for(self, wait: Wait) -> bool:
        """Return True if no claim counted so far blocks this one; see `blockers_of`."""
        if self._stopped and wait.at >= 0:
            return False
        mode = wait.place.mode
        if mode == PERMIT:
            return self._counts.get(PERMIT, 0) + wait.place.weight <= self._limit
        own = _place_at(wait.claim, wait.resource).mode if wait.claim.wants else ""
        if self._converting and not own:
            return False
        return not any(
            count > (other == own)
            for other, count in self._counts.items()
            if other in CONFLICTS[mode]
        )


def blockers_of(wait: Wait, stuck: set[str] | None = None) -> list[ClaimView]:
    """Return the claims that block this one; with `stuck`, only those of these actors.

    A claim without an actor, at which the queue stops, comes with those that block it.
    """
    found = _conflicting(wait, stuck)
    stop = _stop_of(wait, stuck)
    if stop is not None:
        theirs = [] if stop.claim.actor else _conflicting(stop, stuck)
        known = {other[:2] for other in found}
        found += [other for other in (stop.claim, *theirs) if other[:2] not in known]
    return found


def _stop_of(wait: Wait, stuck: set[str] | None) -> Wait | None:
    """Return the first claim ahead in the queue that cannot be granted, if there is one."""
    for at, claim in enumerate(wait.resource.waiting[: max(0, wait.at)]):
        if stuck is None or not claim.actor or claim.actor in stuck:
            ahead = Wait(claim, _place_at(claim, wait.resource), wait.resource, at)
            if _conflicting(ahead, stuck):
                return ahead
    return None


def _conflicting(wait: Wait, stuck: set[str] | None) -> list[ClaimView]:
    """Return the claims ahead whose modes do not go with this one's."""
    there = [
        (other, _place_at(other, wait.resource))
        for other in wait.ahead
        if stuck is None or other.actor in stuck
    ]
    if wait.place.mode == PERMIT:
        weights = sum(place.weight for _, place in there)
        fits = weights + wait.place.weight <= wait.resource.limit
        return [] if fits else [other for other, _ in there]
    conflicts = CONFLICTS[wait.place.mode]
    return [
        other
        for other, place in there
        if place.mode in conflicts or (other.wants and not wait.claim.wants)
    ]


def _knots(edges: Mapping[str, set[str]]) -> list[frozenset[str]]:
    """Return the strongly connected components of the graph (Tarjan's algorithm)."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[frozenset[str]] = []
    for root in sorted(edges):
        if root in index:
            continue
        work = [(root, iter(sorted(edges[root])))]
        index[root] = low[root] = len(index)
        stack.append(root)
        while work:
            node, successors = work[-1]
            for successor in successors:
                if successor not in index:
                    index[successor] = low[successor] = len(index)
                    stack.append(successor)
                    work.append((successor, iter(sorted(edges.get(successor, ())))))
                    break
                if successor in stack:
                    low[node] = min(low[node], index[successor])
            else:
                work.pop()
                if work:
                    low[work[-1][0]] = min(low[work[-1][0]], low[node])
                if low[node] == index[node]:
                    group = set()
                    while True:
                        member = stack.pop()
                        group.add(member)
                        if member == node:
                            break
                    if len(group) > 1 or node in edges.get(node, ()):
                        found.append(frozenset(group))
    return found


def _cycle(group: frozenset[str], waits: Sequence[Wait]) -> Cycle:
    witnesses: dict[tuple[str, int], Witness] = {}
    lines = []
    passing: tuple[ClaimView, ClaimView] | None = None
    for wait in waits:
        blockers = blockers_of(wait, set(group))
        if not blockers:
            continue
        claim = wait.claim
        witnesses[claim.session, claim.n] = Witness(claim.session, claim.n, held=False)
        for other in blockers:
            held = other.state == HOLDING and not other.wants
            witnesses.setdefault((other.session, other.n), Witness(other.session, other.n, held))
        ahead = ", ".join(f"{other.owner} ({other.actor or 'retained'})" for other in blockers)
        lines.append(
            f"{claim.owner} ({claim.actor}) waits for {wait.place.kind} {wait.place.name!r}, "
            f"where {ahead} {'is' if len(blockers) == 1 else 'are'} ahead"
        )
        reservation = blockers[0]
        if (
            passing is None
            and len(claim.places) == 1
            and not claim.wants
            and len(reservation.places) > 1
            and all(other.state != HOLDING for other in blockers)
        ):
            passing = (claim, reservation)
    candidates = [wait for wait in waits if blockers_of(wait, set(group))]
    # Claims that entered a queue in the same millisecond are ordered by their position.
    victim = min(
        candidates,
        key=lambda wait: (wait.claim.priority, wait.claim.for_ms, -wait.at, wait.claim[:2]),
    ).claim
    return Cycle(victim, passing, tuple(witnesses.values()), tuple(sorted(lines)), group)
