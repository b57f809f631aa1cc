"""What a store object remembers about the sessions it opened.

Only the process that opened a session sends commands for it, so it knows which claim numbers were
used, and no key is needed for that. It also remembers the places of its claims, to release them
without a search. Transactions compare everything they use of this: a wrong entry costs a request,
never a lock.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from lockfast.core import commands as c
from lockfast.core.checksum import checksum_of
from lockfast.core.commands import HOLDING, REVOKED, WAITING
from lockfast.core.modes import MODES_OF_KIND
from lockfast.core.reasons import EXPIRED
from lockfast.core.rows import Claim, Session, copied
from lockfast.ports import Deliver, Signal
from lockfast.stores.etcd import layout as k
from lockfast.stores.etcd.requests import Found, Range

ARRIVAL_BITS = 24


class Location(NamedTuple):
    """Where to find a claim: its first place and its rank."""

    kind: str
    name: str
    rank: str

    def candidates(self, session: str, n: int) -> list[Range]:
        """Return the keys that the claim may have there, for every mode and state."""
        prefix = k.resource_prefix(self.kind, self.name)
        modes = sorted(MODES_OF_KIND.get(self.kind, ()))
        found = [k.holder_key(prefix, mode, self.rank, session, n) for mode in modes]
        found += [k.line_key(prefix, line, self.rank, session, n) for line in "vw"]
        return [Range(key) for key in found]


@dataclass
class OwnClaim:
    """A claim of our own session, as last reported."""

    claim: Claim
    mod: int = 0
    """The revision that wrote its keys, if it is a holder."""
    heirs: Found | None = None
    """The next claims in the queue at revision `heirs_mod`. Known only if the claim was alone then:
    nothing else was stored at its resource up to the last heir or, if none is counted, at all."""
    heirs_mod: int = 0
    has_word: bool = False

    @property
    def places(self) -> tuple[c.Place, ...]:
        return self.claim.places

    @property
    def rank(self) -> str:
        return self.claim.rank

    @property
    def token(self) -> int:
        """The claim's token; 0 while it waits."""
        return self.claim.token

    def granted(self, token: int, mod: int, heirs: Found | None) -> None:
        self.claim.state, self.claim.token = HOLDING, token
        self.mod, self.heirs, self.heirs_mod = mod, heirs, mod

    def inherits(self, heirs: Found | None, revision: int) -> None:
        """Record the first claim in the queue, which has joined since the grant."""
        if self.mod and heirs is not None:
            self.heirs, self.heirs_mod = heirs, revision


@dataclass(eq=False)
class OwnSession:
    """A session, as known to the store object that opened it."""

    id: str
    mutex: AbstractContextManager[Any]
    record: k.Record | None = None
    mod: int = 0
    """The revision that wrote the session's key; every enter compares it."""
    ended: bool = False
    claims: dict[int, OwnClaim] = field(default_factory=dict)
    doubted: set[int] = field(default_factory=set)
    """Claim numbers whose enter may still be executed while the session's key has revision `mod`.
    """
    opening: list[Signal] | None = None
    """Callers waiting while another caller opens the session."""
    deliver: Deliver | None = None
    """The callback for wakes, once a wake listener exists."""
    proved_up_to: int = 0
    """Where the next keep-alive resumes checking that the claims' keys exist."""
    uses_lock_delay: bool = False
    has_words: bool = False
    """Words were received for claims; a keep-alive deletes those of finished claims."""
    _highest: int = 0
    _unseen: set[int] = field(default_factory=set)
    """Claim numbers up to the highest for which no command was executed."""

    @property
    def was_opened(self) -> bool:
        return self.record is not None

    def fill(self, row: Session, n: int, *, exact: bool) -> None:
        """Complete the table's row of this session for a command about claim `n`.

        The checksum visits every claim, so it is computed only if `exact`.
        """
        row.highest = n if self.is_used(n) else n - 1
        with self.mutex:
            row.claims = len(self.claims) - len(self.doubted)
            if exact:
                claims = [item for item in self.claims.items() if item[0] not in self.doubted]
                pairs = [(n, claim.token) for n, claim in claims]
                row.claims, row.checksum = len(pairs), checksum_of(pairs)

    def expired_row(self) -> Session | None:
        """Return the row of a session whose lease has expired; None if it was never opened."""
        if self.record is None:
            return None
        row = k.session_row(self.id, self.record, 0)
        row.ended = EXPIRED
        return row

    def location(self, n: int) -> Location | None:
        claim = self.claims.get(n)
        return Location(*claim.places[0][:2], claim.rank) if claim is not None else None

    def is_used(self, n: int) -> bool:
        """Return whether a command about this claim number was, or may have been, executed."""
        with self.mutex:
            return n in self.claims or (n <= self._highest and n not in self._unseen)

    def saw(self, n: int) -> None:
        """Record that a command about this claim number was executed."""
        with self.mutex:
            self._reach(n)
            self._unseen.discard(n)
            self.doubted.discard(n)

    def doubt(self, claim: Claim) -> None:
        """Record, before an enter is sent, that it may be executed."""
        with self.mutex:
            self._reach(claim.n)
            self.doubted.add(claim.n)
            entered: Claim = copied(claim)
            entered.state, entered.token = WAITING, 0
            self.claims[claim.n] = OwnClaim(entered)

    def _reach(self, n: int) -> None:
        self._unseen.update(range(self._highest + 1, n + 1))
        self._highest = max(self._highest, n)

    def undoubt(self, n: int) -> None:
        """Record that the enter was certainly not executed."""
        with self.mutex:
            self.doubted.discard(n)
            self.claims.pop(n, None)

    def forget_below(self, lowest: int) -> None:
        """Forget all claim numbers below `lowest`; they will not be used again."""
        with self.mutex:
            self._highest = max(self._highest, lowest - 1)
            self._unseen = {n for n in self._unseen if n >= lowest}

    def note(self, claim: Claim, revision: int, heirs: Found | None = None) -> None:
        """Record the state of a claim after a transaction."""
        if claim.state == REVOKED:
            self.claims.pop(claim.n, None)
            return
        found = self.claims.get(claim.n)
        has_word = found is not None and found.has_word
        self.claims[claim.n] = OwnClaim(claim, revision, heirs, revision, has_word)

    def moved(self, n: int, rank: str | None) -> None:
        """Record a claim's new rank; None if the claim is not stored."""
        if rank is None:
            self.claims.pop(n, None)
        elif n in self.claims:
            claim: Claim = copied(self.claims[n].claim)
            claim.rank = rank
            self.claims[n] = OwnClaim(claim)

    def left(self, n: int) -> None:
        self.claims.pop(n, None)


class OwnSessions:
    """The sessions of one store object. Thread-safe."""

    def __init__(self, mutex: AbstractContextManager[Any], salt: int) -> None:
        self._mutex = mutex
        self._sessions: dict[str, OwnSession] = {}
        self._salt = salt
        self._arrival = 0

    def get(self, session: str) -> OwnSession | None:
        return self._sessions.get(session)

    def begin(self, session: str) -> OwnSession:
        with self._mutex:
            found = self._sessions.get(session)
            if found is None:
                found = self._sessions[session] = OwnSession(session, self._mutex)
            return found

    def forget(self, session: str) -> None:
        self._sessions.pop(session, None)

    def next_arrival(self, revision: int) -> int:
        """Return a number that increases with every claim and is unique to this store object."""
        with self._mutex:
            self._arrival = max(self._arrival + 1, revision)
            return (self._arrival << ARRIVAL_BITS) + self._salt
