"""What a store object remembers about the sessions it opened; see `derived/owned.py`.

A claim in doubt is looked for by a read on the session's link, which shows whether its enter, sent
before on the same link, was executed.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from lockfast.core.checksum import checksum_of
from lockfast.core.commands import REVOKED, WAKE_ENDED, Place, Wake
from lockfast.core.reasons import EXPIRED
from lockfast.core.rows import Claim, Session, copied
from lockfast.stores.derived import owned
from lockfast.stores.derived.machine import Machine
from lockfast.stores.zookeeper.transport import Link, OnEvent

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
    is_retained: bool = False
    """The client keeps it after release until others want it."""
    is_taken: bool = False
    """The claim was revoked; its node gives the reason until the client has released it."""


@dataclass(eq=False)
class OwnSession(owned.OwnSession[OwnClaim]):
    """A session, as known to the store object that opened it."""

    link: Link | None = None
    row: Session | None = None
    ended: str = ""
    """Why the session has ended, as far as this process knows."""
    by: str = ""
    hears_log: bool = False
    """It is woken when an event is logged."""
    on_event: OnEvent | None = None
    """The callback for watches that have fired, once a wake listener exists."""

    @property
    def was_opened(self) -> bool:
        return self.row is not None or bool(self.ended)

    @property
    def ttl_ms(self) -> int:
        return self.row.ttl_ms if self.row is not None else 0

    def forgotten(self) -> None:
        self.abandon()

    def session_row(self) -> Session:
        """Return the lock table's row of this session, which was opened."""
        with self.mutex:
            row: Session = copied(self.row)
            pairs = [
                (n, claim.token)
                for n, claim in self.claims.items()
                if n not in self.doubted and not claim.is_taken
            ]
            row.highest, row.unseen = self.highest, self.unseen
        row.claims, row.checksum = len(pairs), checksum_of(pairs)
        row.ended, row.by = self.ended, self.by
        return row

    def known(self, n: int) -> tuple[OwnClaim | None, bool]:
        """Return the claim with this number, and whether its enter is in doubt."""
        with self.mutex:
            return self.claims.get(n), n in self.doubted

    def note(self, claim: Claim) -> None:
        """Record the state of a claim that was entered."""
        with self.mutex:
            known = self.claims.get(claim.n)
            if known is not None and claim.state == REVOKED:
                known.is_taken = True
            elif known is not None:
                self.claims[claim.n] = replace(
                    known, places=claim.places, token=claim.token, is_retained=claim.block > 1
                )

    def numbered(self, n: int, node: str) -> None:
        """Record the number that the server has given to the node of a claim in a bucket."""
        with self.mutex:
            if n in self.claims:
                self.claims[n].node = f"{self.claims[n].node.partition('/')[0]}/{node}"

    def granted(self, n: int, token: int) -> None:
        with self.mutex:
            claim = self.claims.get(n)
            if claim is not None:
                claim.token = token

    def missed(self, n: int, claim: OwnClaim | None) -> None:
        """Forget a claim that was not found, unless an enter was sent since the search."""
        with self.mutex:
            if n not in self.doubted and self.claims.get(n) is claim:
                self.claims.pop(n, None)

    def end(self, reason: str, by: str = "") -> None:
        with self.mutex:
            if not self.ended:
                self.ended, self.by = reason, by

    def hear(self, path: str) -> None:
        """Pass on that a watched node has changed, or with "" that all watches are lost."""
        on_event = self.on_event
        if on_event is not None:
            on_event(path)

    def lost(self) -> None:
        """Pass on that the link has lost its ZooKeeper session."""
        deliver = self.deliver
        if self.row is not None and deliver is not None:
            deliver(Wake(self.row.inbox, self.id, 0, WAKE_ENDED))
        self.hear("")

    def abandon(self, row: Session | None = None) -> None:
        """Record the end of the session; ZooKeeper deletes what is left with its own session.

        `row`: the session as its nodes show it, if it was ended and has not expired.
        """
        self.end((row and row.ended) or EXPIRED, row.by if row else "")
        if self.link is not None:
            self.link.close()


class OwnSessions(owned.OwnSessions[OwnSession]):
    """The sessions of one store object. Thread-safe."""

    def __init__(self, machine: Machine) -> None:
        super().__init__(OwnSession, machine, SALT_BITS)

    def get(self, session: str) -> OwnSession | None:
        """Return a session that was opened by this store object."""
        found = super().get(session)
        return found if found is not None and found.row is not None else None
