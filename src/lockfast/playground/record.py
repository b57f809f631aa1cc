"""The record of a scene: claims from the store's log, and the faults of the workers.

Instants are milliseconds of the wall clock, as in the store's log.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from dataclasses import dataclass
from typing import Final

from lockfast.core.commands import Close, Event, Events, EventsReply
from lockfast.stores.memory import MemoryTable

KEPT: Final = 400
"""How many claims and faults are kept."""


def wall_ms() -> int:
    return time.time_ns() // 1_000_000


@dataclass
class Claim:
    """One claim of a worker."""

    worker: str
    asked_ms: int | None
    granted_ms: int | None = None
    ended_ms: int | None = None
    """When the store ended it, or its wait."""
    how: str = ""
    """How it ended: released, expired, revoked, gave_up."""
    token: int = 0
    number: int = 0
    """The number of the grant, shown instead of the token, which is long."""
    believed: bool = False
    """Its holder has learned of the grant."""
    believed_until_ms: int | None = None
    """When its holder stopped believing that it holds the lock."""


@dataclass
class Fault:
    """A fault of a worker."""

    worker: str
    what: str
    began_ms: int
    ended_ms: int | None = None


class Record:
    """Claims and faults, oldest first. Safe to use from any thread."""

    def __init__(self, table: MemoryTable) -> None:
        self._table = table
        self._mutex = threading.Lock()
        self._position: int | None = None
        self._grants = 0
        self._by_id: dict[tuple[str, int], Claim] = {}
        self._by_token: dict[int, Claim] = {}
        self.claims: deque[Claim] = deque()
        self.faults: deque[Fault] = deque(maxlen=KEPT)

    def update(self) -> None:
        """Let the store expire what is due, and read the new events of its log."""
        with self._mutex:
            # A store has no timer: it expires leases in the next command that writes.
            self._table.apply(Close("nobody"))
            while True:
                reply = self._table.apply(Events(self._position))
                assert isinstance(reply, EventsReply)
                for event in reply.events:
                    self._note(event)
                self._position = reply.events[-1].position if reply.events else reply.end
                if not reply.more:
                    return

    def number_of(self, token: int) -> int:
        """Return the number of the grant with this token: 1 for the first, 0 if unknown."""
        self.update()
        claim = self._by_token.get(token)
        return claim.number if claim is not None else 0

    def holder(self) -> Claim | None:
        """Return the claim that holds the lock according to the store; None if it is free."""
        self.update()
        for claim in reversed(self.claims):
            if claim.granted_ms is not None and claim.ended_ms is None:
                return claim
        return None

    def believed(self, token: int) -> None:
        """Record that a worker has learned that it holds the lock."""
        self.update()
        claim = self._by_token.get(token)
        if claim is not None:
            claim.believed = True

    def believed_until_now(self, token: int) -> None:
        """Record that a holder has just learned that it lost its lease, or released it."""
        claim = self._by_token.get(token)
        if claim is not None and claim.believed_until_ms is None:
            claim.believed_until_ms = wall_ms()

    def began(self, worker: str, what: str) -> None:
        self.faults.append(Fault(worker, what, wall_ms()))

    def ended(self, worker: str, what: str) -> None:
        for fault in self.faults:
            if (fault.worker, fault.what, fault.ended_ms) == (worker, what, None):
                fault.ended_ms = wall_ms()

    def clear(self) -> None:
        """Discard faults and ended claims; grants are counted from 1 again."""
        self.update()
        with self._mutex:
            self._grants = 0
            self._by_token.clear()
            self.claims = deque(claim for claim in self.claims if claim.ended_ms is None)
            self.faults.clear()

    def _note(self, event: Event) -> None:
        key = event.session, event.n
        claim = self._by_id.get(key)
        if claim is None:
            asked_ms = event.wall_ms if event.what == "waiting" else None
            claim = self._by_id[key] = Claim(event.owner, asked_ms)
            self.claims.append(claim)
            if len(self.claims) > KEPT:
                self._by_token.pop(self.claims.popleft().token, None)
        if event.what == "granted":
            self._grants += 1
            claim.granted_ms, claim.token, claim.number = event.wall_ms, event.token, self._grants
            self._by_token[event.token] = claim
        elif event.what not in ("waiting", "converted", "proclaimed"):
            claim.ended_ms, claim.how = event.wall_ms, event.what
            del self._by_id[key]
