"""What a store object remembers about the sessions it opened.

Only the process that opened a session sends commands for it, so it knows which claim numbers were
used and where its claims are. Every step checks what it uses of this: a wrong entry costs a
request, never a lock.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

from lockfast.core import numbers
from lockfast.core.checksum import checksum_of
from lockfast.core.commands import REVOKED, Place
from lockfast.core.rows import Claim, Session, copied
from lockfast.ports import Deliver, Signal
from lockfast.stores.zookeeper.layout import Record
from lockfast.stores.zookeeper.transport import Link

SALT_BITS = 12


@dataclass
class OwnClaim:
    """A claim of our own session, as last reported."""

    places: tuple[Place, ...]
    node: str
    """The node of its first place, below the resource."""
    token: int = 0
    """0 while the claim waits."""
    version: int = 0
    """The version of its node, which another session sets to grant or revoke the claim."""
    is_taken: bool = False
    """The claim was revoked; its node gives the reason until the client has released it."""


@dataclass(eq=False)
class OwnSession:
    """A session, as known to the store object that opened it."""

    id: str
    mutex: AbstractContextManager[Any]
    link: Link | None = None
    record: Record | None = None
    row: Session | None = None
    ended: str = ""
    """Why the session has ended, as far as this process knows."""
    by: str = ""
    renewals: int = 0
    claims: dict[int, OwnClaim] = field(default_factory=dict)
    opening: list[Signal] | None = None
    """Callers waiting while another caller opens the session."""
    deliver: Deliver | None = None
    """The callback for wakes, once a wake listener exists."""
    on_event: Any = None
    proved_up_to: int = 0
    doubted: set[int] = field(default_factory=set)
    """Claim numbers whose enter got no reply; a read on the link shows whether it was executed."""

    @property
    def is_live(self) -> bool:
        return self.row is not None and not self.ended

    def session_row(self) -> Session | None:
        """Return the lock table's row of this session."""
        if self.row is None:
            return None
        with self.mutex:
            row: Session = copied(self.row)
            pairs = [
                (n, claim.token)
                for n, claim in self.claims.items()
                if n not in self.doubted and not claim.is_taken
            ]
        row.claims, row.checksum = len(pairs), checksum_of(pairs)
        row.renewals, row.ended, row.by = self.renewals, self.ended, self.by
        return row

    def is_used(self, n: int) -> bool:
        with self.mutex:
            return n in self.claims or (self.row is not None and numbers.is_seen(self.row, n))

    def doubt(self, claim: Claim, node: str) -> OwnClaim | None:
        """Record, before an enter is sent, that it may be executed.

        From now on, a look or a release finds the claim in doubt and reads, after the enter and on
        the same link, whether that was executed. Returns None if the claim has already been
        released.
        """
        with self.mutex:
            if self.row is not None and numbers.is_seen(self.row, claim.n):
                return None
            self.doubted.add(claim.n)
            doubted = self.claims[claim.n] = OwnClaim(claim.places, node)
            return doubted

    def known(self, n: int) -> tuple[OwnClaim | None, bool]:
        """Return the claim with this number, and whether its enter is in doubt."""
        with self.mutex:
            return self.claims.get(n), n in self.doubted

    def undoubt(self, n: int, claim: OwnClaim) -> None:
        """Record that the enter of `claim` was not executed, unless another was sent since."""
        with self.mutex:
            if n in self.doubted and self.claims.get(n) is claim:
                self.doubted.discard(n)
                self.claims.pop(n, None)

    def saw(self, n: int) -> None:
        """Record that a command about this claim number was executed."""
        with self.mutex:
            self.doubted.discard(n)
            if self.row is not None:
                numbers.see(self.row, n)

    def forget_below(self, lowest: int) -> None:
        with self.mutex:
            if self.row is not None:
                numbers.forget_below(self.row, lowest)

    def note(self, claim: Claim, node: str) -> None:
        """Record the state of a claim."""
        with self.mutex:
            if claim.state == REVOKED:
                if claim.n in self.claims:
                    self.claims[claim.n].is_taken = True
            else:
                version = self.claims[claim.n].version if claim.n in self.claims else 0
                self.claims[claim.n] = OwnClaim(claim.places, node, claim.token, version)

    def granted(self, n: int, token: int) -> None:
        with self.mutex:
            claim = self.claims.get(n)
            if claim is not None:
                claim.token = token

    def left(self, n: int) -> None:
        with self.mutex:
            self.claims.pop(n, None)

    def missed(self, n: int, claim: OwnClaim | None) -> None:
        """Forget a claim that was not found, unless an enter was sent since the search."""
        with self.mutex:
            if n not in self.doubted and self.claims.get(n) is claim:
                self.claims.pop(n, None)

    def end(self, reason: str, by: str = "") -> None:
        with self.mutex:
            if not self.ended:
                self.ended, self.by = reason, by

    def abandon(self, reason: str, by: str = "") -> None:
        """Record the end of the session; ZooKeeper deletes what is left with its own session."""
        self.end(reason, by)
        if self.link is not None:
            self.link.close()


class OwnSessions:
    """The sessions of one store object. Thread-safe."""

    def __init__(self, mutex: AbstractContextManager[Any], salt: int) -> None:
        self._mutex = mutex
        self._sessions: dict[str, OwnSession] = {}
        self._salt = salt
        self._arrival = 0

    def get(self, session: str) -> OwnSession | None:
        """Return a session that was opened by this store object."""
        found = self._sessions.get(session)
        return found if found is not None and found.row is not None else None

    def all(self) -> list[OwnSession]:
        with self._mutex:
            return list(self._sessions.values())

    def begin(self, session: str) -> OwnSession:
        with self._mutex:
            found = self._sessions.get(session)
            if found is None:
                found = self._sessions[session] = OwnSession(session, self._mutex)
            return found

    def forget(self, session: str) -> None:
        with self._mutex:
            self._sessions.pop(session, None)

    def next_arrival(self, wall_us: int) -> int:
        """Return a number that increases with every claim; other store objects rarely draw it."""
        with self._mutex:
            self._arrival = max(self._arrival + 1, wall_us)
            return (self._arrival << SALT_BITS) + self._salt
