"""What a store object remembers of the sessions it opened.

Only the process that opened a session sends commands for it, so it knows which claim numbers were
used and where its claims stand. Every step that relies on this checks it: what is wrong here costs
a request, never a lock.
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
    """A claim of a session of ours, as last heard of."""

    places: tuple[Place, ...]
    node: str
    """Of its first place, below the resource."""
    token: int = 0
    """0 while it waits."""
    version: int = 0
    """Of its node, which is set whenever another session grants it or takes it away."""
    is_taken: bool = False
    """It was taken away; its node says why, until its client has left it."""


@dataclass(eq=False)
class OwnSession:
    """One session, as the store object that opened it knows it."""

    id: str
    mutex: AbstractContextManager[Any]
    link: Link | None = None
    record: Record | None = None
    row: Session | None = None
    ended: str = ""
    """Why it is over, as far as we know."""
    by: str = ""
    renewals: int = 0
    claims: dict[int, OwnClaim] = field(default_factory=dict)
    opening: list[Signal] | None = None
    """While a caller opens the session: the others that wait for that."""
    deliver: Deliver | None = None
    """Where wakes go, once a wake listener is there."""
    on_event: Any = None
    proved_up_to: int = 0
    doubted: set[int] = field(default_factory=set)
    """Numbers whose enter got no answer: what is read on the link now shows whether it was done."""

    @property
    def is_live(self) -> bool:
        return self.row is not None and not self.ended

    def session_row(self) -> Session | None:
        """The lock table's row."""
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
        """An enter of this claim is about to be sent; None if the claim was left in the meantime.

        Whoever looks at the claim or leaves it from now on finds it in doubt, and reads on the
        link after the enter whether that was carried out.
        """
        with self.mutex:
            if self.row is not None and numbers.is_seen(self.row, claim.n):
                return None
            self.doubted.add(claim.n)
            doubted = self.claims[claim.n] = OwnClaim(claim.places, node)
            return doubted

    def known(self, n: int) -> tuple[OwnClaim | None, bool]:
        """The claim of this number, and whether its enter is in doubt."""
        with self.mutex:
            return self.claims.get(n), n in self.doubted

    def undoubt(self, n: int, claim: OwnClaim) -> None:
        """The enter of `claim` was not carried out; another one may have been sent since."""
        with self.mutex:
            if n in self.doubted and self.claims.get(n) is claim:
                self.doubted.discard(n)
                self.claims.pop(n, None)

    def saw(self, n: int) -> None:
        """A command about this claim number was carried out."""
        with self.mutex:
            self.doubted.discard(n)
            if self.row is not None:
                numbers.see(self.row, n)

    def forget_below(self, lowest: int) -> None:
        with self.mutex:
            if self.row is not None:
                numbers.forget_below(self.row, lowest)

    def note(self, claim: Claim, node: str) -> None:
        """Take over how a claim stands."""
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
        """`claim` was not found: forget it, unless an enter was sent since it was looked for."""
        with self.mutex:
            if n not in self.doubted and self.claims.get(n) is claim:
                self.claims.pop(n, None)

    def end(self, reason: str, by: str = "") -> None:
        with self.mutex:
            if not self.ended:
                self.ended, self.by = reason, by

    def abandon(self, reason: str, by: str = "") -> None:
        """The session is over; whatever is left of it goes with its ZooKeeper session."""
        self.end(reason, by)
        if self.link is not None:
            self.link.close()


class OwnSessions:
    """The sessions of one store object. Any thread may use it."""

    def __init__(self, mutex: AbstractContextManager[Any], salt: int) -> None:
        self._mutex = mutex
        self._sessions: dict[str, OwnSession] = {}
        self._salt = salt
        self._arrival = 0

    def get(self, session: str) -> OwnSession | None:
        """A session that was opened here."""
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
        """A number that rises with every claim, and that hardly any other store object draws."""
        with self._mutex:
            self._arrival = max(self._arrival + 1, wall_us)
            return (self._arrival << SALT_BITS) + self._salt
