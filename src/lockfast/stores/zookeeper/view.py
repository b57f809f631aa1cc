"""The lock table's rows, built from the documents that were read.

The table runs over a `View`, which presents sessions, claims, resources and queues as rows. If the
table needs data that has not been read, `Missing` names it; the step reads it and runs the table
again. The table's changes stay in the view, for `plan` to turn into one multi.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

from lockfast.core import rows as r
from lockfast.core.commands import HOLDING, Event, Place
from lockfast.core.lines import FAR_MS, place_at, share
from lockfast.core.memory_rows import MemoryRows
from lockfast.core.rows import Claim, Meta, ResourceRow, Session, copied
from lockfast.stores.zookeeper import layout as k
from lockfast.stores.zookeeper.layout import Document, Entry, Owner
from lockfast.stores.zookeeper.owned import OwnSessions

Name = tuple[str, str]
ClaimId = tuple[str, int]


class Missing(Exception):  # not an error: the step reads more
    """The table needs data that has not been read."""

    def __init__(
        self,
        *,
        resource: Name | None = None,
        claim: ClaimId | None = None,
        refill: Name | None = None,
        bucket: str = "",
        of: ClaimId | None = None,
        seal: Name | None = None,
    ) -> None:
        self.resource = resource
        self.claim = claim
        self.refill = refill
        """A resource whose next bucket is needed, or the `bucket` that contains the claim `of`."""
        self.bucket = bucket
        self.of = of
        self.seal = seal
        """A resource that is to be written, although it was read from an open bucket."""


class Instant(NamedTuple):
    """A reading of the clocks: the server's in milliseconds, a wall clock in microseconds."""

    now_ms: int
    wall_us: int
    by_server: bool = True
    """Whether a session lives as long as its node, regardless of clocks. Tests that compare the
    store with the lock table set this to False and end sessions by their own clock."""

    def deadline_ms(self, at_ms: int) -> int:
        return max(at_ms, self.now_ms + 1) if self.by_server else at_ms


@dataclass
class Loaded:
    """A resource as it was read, or as a step assumes it to be."""

    kind: str
    name: str
    path: str
    exists: bool = False
    version: int = 0
    children: frozenset[str] = frozenset()
    """The nodes below it that existed after it was read."""
    document: Document = field(default_factory=Document)
    """The document, without entries whose nodes are gone."""
    dead: list[Entry] = field(default_factory=list)
    taken: dict[ClaimId, tuple[Claim, str]] = field(default_factory=dict)
    """Claims that were revoked and not released yet, with their nodes."""
    is_refilled: bool = False
    """Claims of a bucket were read into the document."""
    open_reads: bool = False
    """Some of these were read from an open bucket, where others may have joined since."""
    peeked: dict[ClaimId, Entry] = field(default_factory=dict)
    """Claims that were read from a bucket and stay there."""
    counts: dict[str, int] = field(default_factory=dict)
    """How many claims wait in a bucket, where this was read."""
    last: str = ""
    """The highest rank in the last bucket, if its names were read."""
    last_count: int = 0
    """How many claims have nodes in the last bucket."""
    next_start: str = ""
    """If the last bucket was sealed for this step: the rank from which its successor continues."""
    emptied: list[str] = field(default_factory=list)
    """Nodes of sealed buckets that have no claim left."""
    missed: set[ClaimId] = field(default_factory=set)
    """Claims that are not in the bucket where they were searched for."""

    def copy(self) -> Loaded:
        document = Document(
            dict(self.document.entries), self.document.limit, self.document.closed_ms,
            self.document.marker, list(self.document.buckets),
        )  # fmt: skip
        return Loaded(
            self.kind, self.name, self.path, self.exists, self.version, self.children, document,
            list(self.dead), dict(self.taken),
        )  # fmt: skip


class View(MemoryRows):
    """The row port for one run of the table."""

    __slots__ = (
        "_events", "_instant", "_known_sessions", "_locations", "_nodes", "_now_ms", "_own",
        "before", "loaded", "owners",
    )  # fmt: skip

    def __init__(
        self,
        loaded: dict[Name, Loaded],
        own: OwnSessions,
        sessions: dict[str, Session | None],
        locations: dict[ClaimId, tuple[Place, ...]],
        nodes: dict[ClaimId, str],
        instant: Instant,
        arrival: int,
    ) -> None:
        super().__init__()
        self.loaded = loaded
        self.before: dict[ClaimId, Claim] = {}
        """The claims, as read."""
        self.owners: dict[str, Owner] = {}
        self._own = own
        self._known_sessions = sessions
        self._locations = locations
        self._nodes = nodes
        self._instant = instant
        self._now_ms = instant.now_ms
        self._events: list[Event] = []
        for one in loaded.values():
            self._add_resource(one)
        due = super().scan(r.DUE_PREFIX, r.after_prefix(r.DUE_PREFIX), 1)
        super().put(r.META_KEY, Meta(k.RELATIVE - 1, arrival - 1, 0 if due else FAR_MS))

    def place_at(self, arrival: int) -> None:
        """Set the arrival number of the next claim."""
        meta: Meta = super().get(r.META_KEY)
        meta.position = arrival - 1

    @property
    def logged(self) -> list[Event]:
        return self._events

    # ── building ─────────────────────────────────────────────────────────────────────

    def _add_resource(self, one: Loaded) -> None:
        document = one.document
        row = ResourceRow(one.kind, one.name)
        row.limit, row.closed_ms = document.limit, document.closed_ms
        holders: list[Claim] = []
        for entry in document.entries.values():
            claim = self._add_claim(entry)
            place = place_at(claim, row)
            ref = r.claim_ref(claim.session, claim.n)
            if claim.state == HOLDING:
                row.held[place.mode] = row.held.get(place.mode, 0) + share(place)
                holders.append(claim)
                if claim.wants:
                    row.converting = ref
            elif claim.passed >> claim.places.index(place) & 1:
                row.reserved[place.mode] = row.reserved.get(place.mode, 0) + share(place)
                row.reservations += 1
                super().put(r.line_prefix("v", one.kind, one.name) + claim.rank, ref)
            else:
                row.waiting += 1
                super().put(r.line_prefix("w", one.kind, one.name) + claim.rank, ref)
        row.holders = len(holders)
        row.retained = sum(claim.block > 1 for claim in holders)
        if len(holders) == 1:
            sole = holders[0]
            row.sole = f"{sole.rank}{r.SEPARATOR}{r.claim_ref(sole.session, sole.n)}"
        for claim in holders[: len(holders) if len(holders) > 1 else 0]:
            prefix = r.line_prefix("h", one.kind, one.name)
            super().put(prefix + claim.rank, r.claim_ref(claim.session, claim.n))
        for entry in one.peeked.values():
            claim = self._add_claim(entry)
            ref = r.claim_ref(claim.session, claim.n)
            super().put(r.line_prefix("w", one.kind, one.name) + claim.rank, ref)
        # A bucket that was not read counts as one claim more than was peeked at, so the table
        # does not take the queue to be empty before the bucket has been read.
        row.waiting += len(one.peeked)
        row.waiting += sum(one.counts.get(bucket.name, 1) for bucket in document.buckets)
        for of, (taken, _) in one.taken.items():
            self.before[of] = taken
            super().put(r.claim_key(*of), copied(taken))
        for entry in one.dead:
            if entry.claim.state == HOLDING and entry.claim.lock_delay_ms:
                row.closed_ms = max(row.closed_ms, self._now_ms + entry.claim.lock_delay_ms)
        if row.holders or row.waiting or row.reservations or row.closed_ms:
            if 0 < row.closed_ms <= self._now_ms:
                super().put(r.opening_key(row.closed_ms, one.kind, one.name), "")
            super().put(r.resource_key(one.kind, one.name), row)

    def _add_claim(self, entry: Entry) -> Claim:
        of = (entry.claim.session, entry.claim.n)
        if of not in self.before:
            claim: Claim = copied(entry.claim)
            self.before[of] = entry.claim
            self.owners[claim.session] = entry.owner
            super().put(r.claim_key(*of), claim)
            if claim.state == HOLDING and 0 < claim.until_ms <= self._now_ms:
                super().put(r.due_key(claim.until_ms, *of), "")
        found: Claim = super().get(r.claim_key(*of))
        return found

    # ── the row port ─────────────────────────────────────────────────────────────────

    def get(self, key: str) -> Any:
        found = super().get(key)
        if found is not None:
            return found
        family, _, rest = key.partition(r.SEPARATOR)
        if family == "s":
            row = self._session(rest)
            if row is not None:
                super().put(key, row)
            return row
        if family == "r":
            kind, _, name = rest.partition(r.SEPARATOR)
            if (kind, name) not in self.loaded:
                raise Missing(resource=(kind, name))
        if family == "c":
            session, _, n = rest.partition(r.SEPARATOR)
            self._find(session, int(n, 16))
        return None

    def _find(self, session: str, n: int) -> None:
        """Raise Missing unless a claim that is in no document read so far is certainly absent."""
        of, own = (session, n), self._own.get(session)
        if of in self.before:
            return  # deleted by the table
        if of in self._locations:
            places: tuple[Place, ...] | None = self._locations[of]
        elif own is not None:
            places = own.claims[n].places if n in own.claims else ()
        else:
            raise Missing(claim=of)
        for place in places or ():
            if place[:2] not in self.loaded:
                raise Missing(resource=place[:2])
        node = self._nodes.get(of, "")
        if own is not None and n in own.claims:
            node = own.claims[n].node
        if node[:1] == "q" and places:
            one, bucket = self.loaded[places[0][:2]], node[1:].partition("/")[0]
            is_listed = any(known.name == bucket for known in one.document.buckets)
            if is_listed and of not in one.missed:
                raise Missing(refill=places[0][:2], bucket=bucket, of=of)

    def _session(self, session: str) -> Session | None:
        if session in self._known_sessions:
            return copied(self._known_sessions[session])  # type: ignore[no-any-return]
        own = self._own.get(session)
        if own is not None:
            row = own.session_row()
            if row is not None:
                row.deadline_ms = self._instant.deadline_ms(row.deadline_ms)
            if row is not None and session not in self.owners:
                self.owners[session] = Owner(row.ttl_ms, row.owner, row.process, row.inbox)
            return row
        owner = self.owners.get(session)
        if owner is None:
            return None
        return Session(
            session, owner.ttl_ms, owner.owner, "", owner.inbox, owner.process, 0,
            self._now_ms + owner.ttl_ms,
        )  # fmt: skip

    def scan(
        self, start: str, stop: str, limit: int, reverse: bool = False
    ) -> list[tuple[str, Any]]:
        found = super().scan(start, stop, limit, reverse)
        if start[0] == "w" and not reverse:
            _, kind, name, bound = start.split(r.SEPARATOR, 3)
            buckets = self.loaded[kind, name].document.buckets
            # From a rank on, the table only searches for a claim to send a hint to: one that is in
            # a bucket may miss it, since it looks at its queue with every keep-alive.
            if buckets and not bound:
                known_up_to = start + min(bucket.start for bucket in buckets)
                if len(found) < limit or found[-1][0] >= known_up_to:
                    raise Missing(refill=(kind, name))
        return found

    def append(self, event: Event) -> None:
        self._events.append(event)

    # ── afterwards ───────────────────────────────────────────────────────────────────

    def claims(self) -> dict[ClaimId, Claim]:
        """Return the claims with the table's changes."""
        prefix = f"c{r.SEPARATOR}"
        found = super().scan(prefix, r.after_prefix(prefix), FAR_MS)
        return {(claim.session, claim.n): claim for _, claim in found}

    def row(self, one: Loaded) -> ResourceRow | None:
        found: ResourceRow | None = super().get(r.resource_key(one.kind, one.name))
        return found
