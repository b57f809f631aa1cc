"""The lock table's rows, built from the documents that were read.

The table runs over a `View`, which presents sessions, claims, resources and queues as rows. If the
table needs data that has not been read, `Missing` names it; the step reads it and runs the table
again. The table's changes stay in the view, for `plan` to turn into one multi.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from lockfast.core import rows as r
from lockfast.core.commands import HOLDING, Place
from lockfast.core.rows import Claim, ResourceRow, Session, copied
from lockfast.stores.derived.steps import Instant
from lockfast.stores.derived.view import ClaimId, DerivedRows, Name
from lockfast.stores.zookeeper.layout import Bucket, Document, Entry, Owner
from lockfast.stores.zookeeper.owned import OwnSessions


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
        beside: str = "",
    ) -> None:
        self.resource = resource
        self.claim = claim
        self.refill = refill
        """A resource whose next bucket is needed, or the `bucket` that contains the claim `of`, or
        the claims next to the rank `beside`."""
        self.bucket = bucket
        self.of = of
        self.beside = beside


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
    peeked: dict[ClaimId, Entry] = field(default_factory=dict)
    """Claims that were read from a bucket and stay there."""
    below: dict[str, frozenset[str]] = field(default_factory=dict)
    """The names of all nodes in a bucket, where they were read."""
    counts: dict[str, int] = field(default_factory=dict)
    """How many claims of a bucket wait there and are not in the document, where this was read."""
    last: str = ""
    """The highest rank in the bucket that a claim is to join, if its names were read."""
    missed: set[ClaimId] = field(default_factory=set)
    """Claims that are not in the bucket where they were searched for."""
    as_of: int = 0
    """This was read or written after the claims with a lower arrival number had arrived."""
    seen_ms: int = 0
    """When this was read, written or heard of."""

    def copy(self) -> Loaded:
        document = Document(
            dict(self.document.entries), self.document.limit, self.document.closed_ms,
            self.document.marker, list(self.document.buckets),
        )  # fmt: skip
        return Loaded(
            self.kind, self.name, self.path, self.exists, self.version, self.children, document,
            list(self.dead), dict(self.taken), last=self.last, as_of=self.as_of,
            seen_ms=self.seen_ms,
        )  # fmt: skip

    def bucket_for(self, head_start_ms: int) -> Bucket | None:
        """Return the bucket that a claim with this head start may join."""
        fitting = [b for b in self.document.buckets if b.head_start_ms == head_start_ms]
        return fitting[-1] if fitting and not fitting[-1].is_sealed else None

    def unread(self) -> list[Bucket]:
        """Return the buckets in which claims wait, or may wait."""
        return [one for one in self.document.buckets if self.counts.get(one.node, 1)]


class View(DerivedRows[Owner]):
    """The row port for one run of the table."""

    __slots__ = ("_arrival", "_known_sessions", "_locations", "_nodes", "_own", "exact", "loaded")

    def __init__(
        self,
        loaded: dict[Name, Loaded],
        own: OwnSessions,
        sessions: dict[str, Session | None],
        locations: dict[ClaimId, tuple[Place, ...]],
        nodes: dict[ClaimId, str],
        instant: Instant,
        arrival: int,
        *,
        exact: bool,
    ) -> None:
        """`exact`: whether the command is about the claims next to one in a queue."""
        super().__init__(instant)
        self.loaded = loaded
        self.exact = exact
        self._own = own
        self._known_sessions = sessions
        self._locations = locations
        self._nodes = nodes
        self._arrival = arrival
        for one in loaded.values():
            self._add_loaded(one)

    # ── building ─────────────────────────────────────────────────────────────────────

    def _add_loaded(self, one: Loaded) -> None:
        document, now_ms = one.document, self.instant.now_ms
        row = ResourceRow(one.kind, one.name)
        row.limit, row.closed_ms = document.limit, document.closed_ms
        for entry in (*document.entries.values(), *one.peeked.values()):
            claim = self.add_claim(entry.claim, entry.owner)
            self.add_place(row, claim)
            if claim.state == HOLDING and 0 < claim.until_ms <= now_ms:
                self.put(r.due_key(claim.until_ms, claim.session, claim.n), "")
        # A bucket that was not read counts as one claim more than was peeked at, so the table
        # does not take the queue to be empty before the bucket has been read.
        row.waiting += sum(one.counts.get(bucket.node, 1) for bucket in document.buckets)
        for of, (taken, _) in one.taken.items():
            self.before[of] = taken
            self.put(r.claim_key(*of), copied(taken))
        for entry in one.dead:
            if entry.claim.state == HOLDING and entry.claim.lock_delay_ms:
                row.closed_ms = max(row.closed_ms, now_ms + entry.claim.lock_delay_ms)
        if 0 < row.closed_ms <= now_ms:
            self.put(r.opening_key(row.closed_ms, one.kind, one.name), "")
        self.add_resource(row)

    # ── the row port ─────────────────────────────────────────────────────────────────

    def get(self, key: str) -> Any:
        if key == r.META_KEY:
            return self.meta(self._arrival)
        found = super().get(key)
        if found is not None:
            return found
        family, _, rest = key.partition(r.SEPARATOR)
        if family == "s":
            row = self._session(rest)
            if row is not None:
                self.put(key, row)
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
            one, bucket = self.loaded[places[0][:2]], node.partition("/")[0]
            is_listed = any(known.node == bucket for known in one.document.buckets)
            if is_listed and of not in one.missed:
                raise Missing(refill=places[0][:2], bucket=bucket, of=of)

    def _session(self, session: str) -> Session | None:
        if session in self._known_sessions:
            return copied(self._known_sessions[session])  # type: ignore[no-any-return]
        own = self._own.get(session)
        if own is not None:
            row = own.session_row()
            row.deadline_ms = self.instant.deadline_ms(row.deadline_ms)
            self.owners.setdefault(session, Owner(row.ttl_ms, row.owner, row.process, row.inbox))
            return row
        return self.guest(session) if session in self.owners else None

    def scan(
        self, start: str, stop: str, limit: int, reverse: bool = False
    ) -> list[tuple[str, Any]]:
        found = super().scan(start, stop, limit, reverse)
        if start[0] == "w":
            _, kind, name, bound = start.split(r.SEPARATOR, 3)
            one = self.loaded[kind, name]
            buckets = one.unread()
            if reverse or bound:
                rank = stop.rpartition(r.SEPARATOR)[2] if reverse else bound
                if self.exact:
                    self._look_beside(one, rank, is_ahead=reverse, is_found=bool(found))
            elif buckets:
                known_up_to = start + min(bucket.start for bucket in buckets)
                if len(found) < limit or found[-1][0] >= known_up_to:
                    raise Missing(refill=(kind, name))
        return found

    def _look_beside(self, one: Loaded, rank: str, *, is_ahead: bool, is_found: bool) -> None:
        """Raise Missing if a bucket that was not read may have the claim next to this rank.

        Of the buckets of one priority it is enough to read one: the claims in another one are
        farther away. A claim behind is searched for only if the document has none; it would get a
        hint that it can do without, since it looks at its queue with every keep-alive.
        """
        known = {
            bucket.head_start_ms for bucket in one.document.buckets if bucket.node in one.below
        }
        for bucket in one.unread():
            may_have = bucket.start < rank if is_ahead else not is_found
            if may_have and bucket.head_start_ms not in known:
                raise Missing(refill=(one.kind, one.name), bucket=bucket.node, beside=rank)
