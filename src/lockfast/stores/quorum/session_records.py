"""A client's records of its sessions: which nodes have accepted which claim, and when.

A claim is held while a majority of nodes is known to have accepted it. `covered` is, per session
and node, the latest local time from which the node certainly counts the session's TTL. So a claim
is valid until one TTL after the majority-th latest of these times among the nodes that have it.

Callers and the keeper of a client share these records under one mutex, which is never held
across I/O.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final

from lockfast.core.checksum import checksum_of
from lockfast.core.commands import Ended, Open, Place
from lockfast.stores.quorum.messages import Restored, Take

PROPOSED_KEPT: Final = 4096
SESSIONS_KEPT: Final = 64


class Phase(Enum):
    PROPOSED = "proposed"
    HELD = "held"
    LOST = "lost"
    """It lost its majority; the client has not been told yet, or has not released it yet."""
    LEAVING = "leaving"


@dataclass(slots=True)
class Claim:
    """One claim of a session, from before its ballot is sent until it is released."""

    place: Place
    take: Take
    sent_ms: int
    phase: Phase = Phase.PROPOSED
    at: set[int] = field(default_factory=set)
    """Nodes that have accepted its ballot and, as far as is known, still have it."""
    void: dict[int, int] = field(default_factory=dict)
    """Nodes that had lost it, and the last flight sent before this was known: the answers to that
    flight and earlier ones no longer count."""

    def accepted(self, node: int, flight: int) -> None:
        """Record that the node has the claim, unless a later answer said that it has not."""
        if flight > self.void.get(node, 0):
            self.at.add(node)

    def lost_by(self, node: int, flight: int) -> None:
        """Record that the node does not have the claim: answers up to this flight are void."""
        self.at.discard(node)
        self.void[node] = flight


@dataclass(slots=True)
class SessionRecord:
    """What the client knows about one of its sessions."""

    open: Open
    ended: Ended | None = None
    flight: int = 0
    """The number of the last flight that was sent for the session."""
    renewed_ms: int = 0
    """When the last successful keep-alive was sent: the deadline of every lease counts from it."""
    covered: dict[int, int] = field(default_factory=dict)
    claims: dict[int, Claim] = field(default_factory=dict)
    released: set[int] = field(default_factory=set)
    lowest: int = 0
    outdated: set[int] = field(default_factory=set)
    """Nodes whose state of the session differs from this record."""

    def next_flight(self) -> int:
        self.flight += 1
        return self.flight

    def was_released(self, n: int) -> bool:
        return n < self.lowest or n in self.released

    def release(self, n: int) -> None:
        self.claims.pop(n, None)
        self.released.add(n)

    def forget_below(self, lowest: int) -> None:
        self.lowest = max(self.lowest, lowest)
        self.released = {n for n in self.released if n >= self.lowest}

    def believed(self) -> dict[int, Claim]:
        """Return the claims that the client believes to hold, by claim number."""
        return {n: c for n, c in self.claims.items() if c.phase in (Phase.HELD, Phase.LOST)}

    def account_at(self, node: int) -> tuple[int, int]:
        """Return count and checksum of the claims that the node is known to have."""
        there = [(n, c.take.ballot) for n, c in self.claims.items() if node in c.at]
        return len(there), checksum_of(there)

    def confirmed_ms(self, claim: Claim, majority: int) -> int:
        """Return the time from which a majority counts the claim's TTL; -1 if none does."""
        instants = sorted((self.covered.get(node, -1) for node in claim.at), reverse=True)
        return instants[majority - 1] if len(instants) >= majority else -1

    def is_valid(self, claim: Claim, majority: int) -> bool:
        """Return True if a majority keeps the claim for as long as the client would believe in it.

        It does not if the claim's answers arrived after a later keep-alive that did not renew it.
        """
        return self.confirmed_ms(claim, majority) >= self.renewed_ms

    def cover(self, node: int, sent_ms: int) -> None:
        self.covered[node] = max(self.covered.get(node, -1), sent_ms)

    def lose_node(self, node: int) -> None:
        """Record that the node has lost the session and all its claims."""
        self.covered.pop(node, None)
        for claim in self.claims.values():
            claim.lost_by(node, self.flight)

    def restored(self) -> tuple[Restored, ...]:
        """Return the claims that a node may have of this session; it releases all others."""
        return tuple(
            Restored(
                n,
                c.place.kind,
                c.place.name,
                c.take.ballot,
                c.take.actor,
                c.take.value,
                c.take.lock_delay_ms,
                # max_hold counts from the grant, and a node that is asked later does not
                # know when that was.
                c.phase is Phase.HELD and not c.take.max_hold_ms,
            )
            for n, c in self.claims.items()
        )


class SessionRecords:
    """The records of all sessions of one client, and the ballots that it proposed or saw."""

    def __init__(
        self, nodes: int, mutex: AbstractContextManager[Any], wall_us: Callable[[], int]
    ) -> None:
        self.nodes = nodes
        self.majority = nodes // 2 + 1
        self.start(mutex)
        self._wall_us = wall_us
        self._correction_us = 0
        self._highest = 0
        self._proposed: set[int] = set()
        self._order: deque[int] = deque()

    def start(self, mutex: AbstractContextManager[Any]) -> None:
        """Begin without sessions, in a new client or in a forked child."""
        self.mutex = mutex
        self.sessions: dict[str, SessionRecord] = {}

    def session(self, opening: Open) -> SessionRecord:
        """Return the record of a session; its first `Open` creates it."""
        with self.mutex:
            found = self.sessions.get(opening.session)
            if found is None:
                ended = [id_ for id_, record in self.sessions.items() if record.ended]
                for id_ in ended[:-SESSIONS_KEPT]:
                    del self.sessions[id_]
                found = self.sessions[opening.session] = SessionRecord(opening)
            return found

    def wall_us(self) -> int:
        return self._wall_us() + self._correction_us

    def next_ballot(self) -> int:
        """Return a ballot above all that were seen, and never the same one twice.

        A late release of an earlier proposal must not release a later one that is held.
        """
        with self.mutex:
            ballot = max(self.wall_us(), self._highest + 1)
            while ballot in self._proposed:
                ballot += 1
            self._proposed.add(ballot)
            self._order.append(ballot)
            if len(self._order) > PROPOSED_KEPT:
                self._proposed.discard(self._order.popleft())
            return ballot

    def heard(self, highest: int) -> None:
        """Record that a node has accepted this ballot."""
        with self.mutex:
            self._highest = max(self._highest, highest)

    def correct(self, wall_us: int, highest: int) -> None:
        """Follow the clocks of a majority, because our proposals are too far from them."""
        with self.mutex:
            self._correction_us = wall_us - self._wall_us()
            self._highest = highest
