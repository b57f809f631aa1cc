"""What a store object remembers about its sessions; see `derived/owned.py`.

A session has one *home*, the store object that enters its claims and therefore knows all of them.
That is the one that opened it, until another becomes its home: a lock server that was restarted, or
another server over the same cluster. It rewrites the session's key, which every enter compares, so
the former home can enter nothing from then on, and reads the claims that there are.

An enter in doubt may still be executed while the session's key has the revision `OwnSession.mod`.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import Any

from lockfast.core.checksum import checksum_of
from lockfast.core.commands import HOLDING, REVOKED, WAITING, Place
from lockfast.core.reasons import EXPIRED
from lockfast.core.rows import Claim, Session, copied
from lockfast.stores.derived import owned
from lockfast.stores.derived.machine import Machine
from lockfast.stores.etcd import layout as k
from lockfast.stores.etcd.requests import Found

ARRIVAL_BITS = 24


@dataclass
class OwnClaim:
    """A claim of our own session, as last reported."""

    claim: Claim
    slot: str
    mod: int = 0
    """The revision that wrote its keys, if it is a holder."""
    heirs: Found | None = None
    """The next claims in the queue at revision `heirs_mod`. Known only if the claim was alone then:
    nothing else was stored at its resource up to the last heir or, if none is counted, at all."""
    heirs_mod: int = 0
    has_word: bool = False

    @classmethod
    def entering(cls, claim: Claim, slot: str) -> OwnClaim:
        """Return what is known of a claim while its enter is in doubt."""
        entered: Claim = copied(claim)
        entered.state, entered.token = WAITING, 0
        return cls(entered, slot)

    @property
    def places(self) -> tuple[Place, ...]:
        return self.claim.places

    def keys(self) -> list[str]:
        """Return the claim's keys, one per place."""
        return [key for _, key in k.keys_of(self.claim, self.slot)]

    def granted(self, token: int, mod: int, heirs: Found | None) -> None:
        self.claim.state, self.claim.token = HOLDING, token
        self.mod, self.heirs, self.heirs_mod = mod, heirs, mod

    def inherits(self, heirs: Found | None, revision: int) -> None:
        """Record the first claim in the queue, which has joined since the grant."""
        if self.mod and heirs is not None:
            self.heirs, self.heirs_mod = heirs, revision


@dataclass(eq=False)
class OwnSession(owned.OwnSession[OwnClaim]):
    """A session, as known to the store object that opened it."""

    record: k.Record | None = None
    mod: int = 0
    """The revision that wrote the session's key; every enter compares it."""
    ended: bool = False
    has_words: bool = False
    """Words were received for claims; a keep-alive deletes those of finished claims."""
    words_from: int = 0
    """The words for claims with lower numbers were deleted."""
    home: str = ""
    """The name of this store object."""
    times_moved: int = 0
    """How often another store object has become the session's home."""
    _slots: dict[int, int] = field(default_factory=dict)
    _free_slots: list[int] = field(default_factory=list)

    @property
    def was_opened(self) -> bool:
        """Whether this store object is the session's home."""
        return self.record is not None

    @property
    def ttl_ms(self) -> int:
        return self.record.ttl_ms if self.record is not None else 0

    def leave_home(self) -> None:
        """Forget the claims of a session that has another home now."""
        with self.mutex:
            self.record = None
            self.claims.clear()
            self.doubted.clear()
            self._slots.clear()
            self._free_slots.clear()
            self.times_moved += 1

    def slot_of(self, n: int) -> str:
        """Return the slot of a claim, or allocate the lowest one that is free."""
        with self.mutex:
            if n not in self._slots:
                free = self._free_slots
                self._slots[n] = heappop(free) if free else len(self._slots)
            # No claim that was entered before, here or elsewhere, has this slot.
            return f"{self._slots[n]:x}.{self.home[:6]}{self.times_moved or ''}"

    def left(self, n: int) -> None:
        with self.mutex:
            super().left(n)
            self.free_slot(n)

    def free_slot(self, n: int) -> None:
        """Free the slot of a claim that is not stored."""
        with self.mutex:
            if n in self._slots and n not in self.claims:
                heappush(self._free_slots, self._slots.pop(n))

    def fill(self, row: Session, n: int, *, exact: bool) -> None:
        """Complete the table's row of this session for a command about claim `n`.

        The checksum visits every claim, so it is computed only if `exact`.
        """
        row.highest = n if self.is_used(n) else n - 1
        with self.mutex:
            row.claims = len(self.claims) - len(self.doubted)
            if exact:
                claims = [item for item in self.claims.items() if item[0] not in self.doubted]
                pairs = [(n, one.claim.token) for n, one in claims]
                row.claims, row.checksum = len(pairs), checksum_of(pairs)

    def expired_row(self) -> Session | None:
        """Return the row of a session whose lease has expired; None if it was never opened."""
        if self.record is None:
            return None
        row = k.session_row(self.id, self.record, 0)
        row.ended = EXPIRED
        return row

    def location(self, n: int) -> k.PlaceKey | None:
        """Return where a claim is, by its first place."""
        claim = self.claims.get(n)
        if claim is None:
            return None
        (kind, name, *_), rank = claim.claim.places[0], claim.claim.rank
        return k.PlaceKey(kind, name, "", rank, self.id, claim.slot)

    def note(self, claim: Claim, slot: str, revision: int, heirs: Found | None = None) -> None:
        """Record the state of a claim after a transaction."""
        if claim.state == REVOKED:
            self.left(claim.n)
            return
        found = self.claims.get(claim.n)
        has_word = found is not None and found.has_word
        self.claims[claim.n] = OwnClaim(claim, slot, revision, heirs, revision, has_word)

    def moved(self, n: int, rank: str | None) -> None:
        """Record a claim's new rank; None if the claim is not stored."""
        if rank is None:
            self.left(n)
        elif n in self.claims:
            claim: Claim = copied(self.claims[n].claim)
            claim.rank = rank
            self.claims[n] = OwnClaim(claim, self.claims[n].slot)


class OwnSessions(owned.OwnSessions[OwnSession]):
    """The sessions of one store object. Thread-safe."""

    def __init__(self, machine: Machine) -> None:
        home = f"{machine.random_bits(64):016x}"

        def make_session(session: str, mutex: AbstractContextManager[Any]) -> OwnSession:
            return OwnSession(session, mutex, home=home)

        super().__init__(make_session, machine, ARRIVAL_BITS)

    def get(self, session: str) -> OwnSession | None:
        """Return a session whose home is this store object."""
        found = self.peek(session)
        return found if found is not None and found.was_opened else None

    def peek(self, session: str) -> OwnSession | None:
        """Return a session that this store object has used, wherever its home is."""
        return super().get(session)
