"""What the wires and listeners of a store share: what it has seen, as far as it is of use again."""

from __future__ import annotations

import hashlib
import random
from collections import Counter
from typing import Any, Final, NamedTuple

from lockfast.core import commands as c
from lockfast.core import rows as r
from lockfast.core.commands import Command, Wake
from lockfast.core.lines import FAR_MS
from lockfast.ports import Deliver
from lockfast.stores.etcd.alone import Alone
from lockfast.stores.etcd.cluster import Cluster
from lockfast.stores.etcd.knowledge import Knowledge, Want
from lockfast.stores.etcd.requests import Found, Keys, Kv
from lockfast.stores.etcd.rows import (
    EPOCH_KEY,
    living_key,
    record_key,
    stored_key,
)

ARRIVAL_BITS: Final = 24
HELD_MAX: Final = 20_000


class Account(NamedTuple):
    """The claims of a session as of a revision: their tokens, None if taken away."""

    revision: int
    tokens: dict[int, int | None]


class Row(NamedTuple):
    """The row of a resource that a claim of ours holds alone: it was written when it came."""

    key: str
    value: str
    mod: int


class Numbers:
    """The claim numbers of a session of ours, as far as its keep-alives have not moved on.

    Only this process gives commands for the session, so what it has heard is all there is.
    """

    def __init__(self) -> None:
        self.answered: set[int] = set()
        """Entered, and the answer was heard: no such request is under way any more."""
        self.finished: set[int] = set()
        """Given up; they must not come again."""
        self.doubted: dict[int, Kv] = {}
        """Their requests may still be carried out, as long as the session's key is this."""

    def has(self, n: int) -> bool:
        """Whether the number has been sent before."""
        return n in self.answered or n in self.finished or n in self.doubted

    def enter(self, n: int) -> None:
        self.answered.add(n)

    def finish(self, n: int) -> None:
        self.answered.discard(n)
        self.doubted.pop(n, None)
        self.finished.add(n)

    def forget_below(self, lowest: int) -> None:
        for known in (self.answered, self.finished):
            known.difference_update([n for n in tuple(known) if n < lowest])


class Shared:
    """Any thread may use it: what is wrong in it only costs a request."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.keys = Keys(cluster.address.root)
        self.due_ms = FAR_MS
        """When the next thing ends by itself, as of the last transaction."""
        self.listeners: dict[str, Deliver] = {}
        """Sessions that are kept in this process, and how to tell them."""
        self.accounts: dict[str, Account] = {}
        """Of sessions that were renewed here."""
        self.claims: Counter[str] = Counter()
        """How many each session has, about: as of its last keep-alive, and what came since."""
        self.places: dict[tuple[str, int], tuple[c.Place, ...]] = {}
        """Where claims of ours wait, to be looked at with the next keep-alive."""
        self.opening: set[str] = set()
        """Sessions that somebody is about to open: once is enough."""
        self.busy: set[c.Place] = set()
        """Where others were met the last time: there it pays to be ready to wait."""
        self.numbers: dict[str, Numbers] = {}
        self.alone: dict[str, Alone] = {}
        self.ready: dict[str, object] = {}
        """What the shortcut has made ready of each session."""
        self._kvs: dict[str, Kv] = {}
        """The epoch, and what is known of our own sessions."""
        self._held: dict[tuple[str, int], Knowledge | Row] = {}

    def lease_of(self, session: str) -> int:
        """The id of a session's etcd lease: the same at every try, and nobody else's."""
        name = f"{self.cluster.address.root}{session}".encode()
        return int.from_bytes(hashlib.sha256(name).digest()[:8], "big") >> 1 or 1

    def arrival(self, revision: int) -> int:
        """A number that rises with the revisions, and that others do not draw as well."""
        return (revision + 1 << ARRIVAL_BITS) + random.getrandbits(ARRIVAL_BITS)

    # ── guessing ─────────────────────────────────────────────────────────────────────

    def guess(self, command: Command) -> Knowledge | None:
        """What is believed to be so before a command, without asking; None: nothing."""
        if not isinstance(command, c.Enter | c.Leave):
            return None
        kvs = self.believed(command.session)
        if len(kvs) < 3:
            return None
        if isinstance(command, c.Enter):
            known = Knowledge(self.cluster.revision)
            resources = [stored_key(r.resource_key(*place[:2])) for place in command.places]
            claim = r.claim_key(command.session, command.n)
            known.assume(claim, *resources)
        else:
            held = self._held.pop((command.session, command.n), None)
            if held is None:
                return None
            known = _alone(held) if isinstance(held, Row) else held
        for kv in kvs:
            known.add(kv)
        return known

    def alone_of(self, session: str) -> Alone:
        return self.alone.setdefault(session, Alone())

    def numbers_of(self, session: str) -> Numbers:
        return self.numbers.setdefault(session, Numbers())

    def believed(self, session: str) -> list[Kv]:
        """What is known of a session of ours, and of the epoch."""
        keys = (record_key(session), living_key(session), EPOCH_KEY)
        return [self._kvs[key] for key in keys if key in self._kvs]

    def knows(self, session: str) -> bool:
        """Whether we have seen the session live."""
        return living_key(session) in self._kvs

    def met(self, place: c.Place) -> None:
        """Somebody else was there."""
        if len(self.busy) >= HELD_MAX:
            self.busy.clear()
        self.busy.add(place)

    def held(self, session: str, n: int) -> Knowledge | Row | None:
        """What is known of the lines that a claim holds."""
        return self._held.get((session, n))

    def let_go(self, session: str, n: int) -> None:
        self._held.pop((session, n), None)

    def hold(self, session: str, n: int, known: Knowledge | Row) -> None:
        """Keep what is known of the lines a claim holds, for when it leaves them."""
        if len(self._held) < HELD_MAX:
            self._held[session, n] = known

    def hold_as_told(self, session: str, n: int, line: list[Any], revision: int) -> None:
        """As hold, by what whoever granted the claim has told of its line."""
        prefix, value, read_at, more, *follows = line
        known = Knowledge(read_at)
        rows = [Kv(prefix, value, revision), *(Kv(*kv) for kv in follows)]
        known.learn(Want.resource(prefix), Found(rows, len(rows), more))
        self.hold(session, n, known)

    def followed(self, session: str, n: int, line: list[Any]) -> None:
        """Somebody says that it stands in line behind a claim of ours, which holds alone."""
        prefix, value, mod, read_at, *follows = line
        known = Knowledge(read_at)
        rows = [Kv(prefix, value, mod), *(Kv(*kv) for kv in follows)]
        known.learn(Want.resource(prefix), Found(rows, len(rows), False))
        if isinstance(self._held.get((session, n)), Row):
            self._held[session, n] = known

    def keep(self, known: Knowledge, session: str) -> None:
        """Take over what a transaction has shown of a session of ours, and of the epoch."""
        for key in (EPOCH_KEY, record_key(session), living_key(session)):
            kv = known.kvs.get(key)
            if kv is not None:
                self._kvs[key] = kv
            elif known.knows(key):
                self._kvs.pop(key, None)

    def forget(self, session: str) -> None:
        """A session of ours is over, or is not as we knew it."""
        for key in (record_key(session), living_key(session)):
            self._kvs.pop(key, None)

    def left(self, session: str, n: int) -> None:
        """A claim is over, and is not missed in its session's account."""
        self.places.pop((session, n), None)
        if session in self.alone:
            self.alone[session].drop(n)
        account = self.accounts.get(session)
        if account is not None:
            account.tokens.pop(n, None)

    def forget_claims(self, session: str) -> None:
        self.accounts.pop(session, None)
        self.claims.pop(session, None)
        self.numbers.pop(session, None)
        self.alone.pop(session, None)
        self.ready.pop(session, None)
        for of in [of for of in (*self._held, *self.places) if of[0] == session]:
            self._held.pop(of, None)
            self.places.pop(of, None)

    # ── telling ──────────────────────────────────────────────────────────────────────

    def abroad(self, wakes: list[Wake]) -> list[Wake]:
        """Wakes for sessions of other processes."""
        return [wake for wake in wakes if wake.session not in self.listeners]

    def tell(self, wakes: list[Wake]) -> None:
        """Tell our own sessions, after the commit."""
        for wake in wakes:
            deliver = self.listeners.get(wake.session)
            if deliver is not None:
                deliver(wake)


def _alone(row: Row) -> Knowledge:
    """What was so when the row was written: nobody stands in line where nobody holds."""
    known = Knowledge(row.mod)
    known.learn(Want.resource(row.key), Found([Kv(*row)], 1, False))
    return known
