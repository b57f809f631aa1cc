"""What a client knows of its sessions at the nodes.

A claim is held while a majority of nodes is known to hold it for its session. `covered` says,
per session and node, from which local instant on the node counts the session's TTL at the
latest; so a claim is certain until a TTL after the majority-th latest of these instants among
the nodes that have it.

Callers and the keeper of a client share one book, under one mutex that is never held across I/O.
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
    LEAVING = "leaving"


@dataclass(slots=True)
class Claim:
    """One claim of a session, from before its ballot is sent until it is given back."""

    place: Place
    take: Take
    sent_ms: int
    phase: Phase = Phase.PROPOSED
    at: set[int] = field(default_factory=set)
    """Nodes known to have accepted its ballot and not to have lost it."""


@dataclass(slots=True)
class SessionBook:
    """One session of this client."""

    open: Open
    ended: Ended | None = None
    covered: dict[int, int] = field(default_factory=dict)
    claims: dict[int, Claim] = field(default_factory=dict)
    finished: set[int] = field(default_factory=set)
    lowest: int = 0
    next_n: int = 1
    outdated: set[int] = field(default_factory=set)
    """Nodes whose record of the session differs from this one."""

    def is_finished(self, n: int) -> bool:
        return n < self.lowest or n in self.finished

    def finish(self, n: int) -> None:
        self.claims.pop(n, None)
        self.finished.add(n)
        self.next_n = max(self.next_n, n + 1)

    def forget_below(self, lowest: int) -> None:
        self.lowest = max(self.lowest, lowest)
        self.finished = {n for n in self.finished if n >= self.lowest}

    def held(self) -> dict[int, int]:
        """Ballots of the claims that hold, by number."""
        return {n: c.take.ballot for n, c in self.claims.items() if c.phase is Phase.HELD}

    def account_at(self, node: int) -> tuple[int, int]:
        """Count and checksum of the claims that this node is known to have."""
        there = [(n, c.take.ballot) for n, c in self.claims.items() if node in c.at]
        return len(there), checksum_of(there)

    def confirmed_ms(self, claim: Claim, majority: int) -> int:
        """From which instant on a majority counts the TTL of this claim; -1: none does."""
        instants = sorted((self.covered.get(node, -1) for node in claim.at), reverse=True)
        return instants[majority - 1] if len(instants) >= majority else -1

    def cover(self, node: int, sent_ms: int) -> None:
        self.covered[node] = max(self.covered.get(node, -1), sent_ms)

    def lose_node(self, node: int) -> None:
        """The node has lost the session, and with it every claim."""
        self.covered.pop(node, None)
        for claim in self.claims.values():
            claim.at.discard(node)

    def restored(self) -> tuple[Restored, ...]:
        """What a node may have of this session: it gives back the rest."""
        return tuple(
            Restored(
                n,
                c.place.kind,
                c.place.name,
                c.take.ballot,
                c.take.actor,
                c.take.value,
                c.take.lock_delay_ms,
                # The bound of max_hold counts from the grant, which a node asked later
                # does not know.
                c.phase is Phase.HELD and not c.take.max_hold_ms,
            )
            for n, c in self.claims.items()
        )


class Book:
    """The sessions of one client, and the ballots it has proposed and heard of."""

    def __init__(
        self, nodes: int, mutex: AbstractContextManager[Any], wall_us: Callable[[], int]
    ) -> None:
        self.nodes = nodes
        self.majority = nodes // 2 + 1
        self.mutex = mutex
        self.sessions: dict[str, SessionBook] = {}
        self._wall_us = wall_us
        self._correction_us = 0
        self._highest = 0
        self._proposed: set[int] = set()
        self._order: deque[int] = deque()

    def session(self, opening: Open) -> SessionBook:
        """The session's page, begun with its first `Open`."""
        with self.mutex:
            found = self.sessions.get(opening.session)
            if found is None:
                ended = [id_ for id_, page in self.sessions.items() if page.ended]
                for id_ in ended[:-SESSIONS_KEPT]:
                    del self.sessions[id_]
                found = self.sessions[opening.session] = SessionBook(opening)
            return found

    def wall_us(self) -> int:
        return self._wall_us() + self._correction_us

    def next_ballot(self) -> int:
        """One above all heard of, and none that was proposed before.

        What was given back of an earlier proposal may arrive while the later one is held.
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
        """A node has accepted this ballot."""
        with self.mutex:
            self._highest = max(self._highest, highest)

    def correct(self, wall_us: int, highest: int) -> None:
        """What we propose is too far from the clocks of a majority: go by theirs from now on."""
        with self.mutex:
            self._correction_us = wall_us - self._wall_us()
            self._highest = highest
