"""The lock table's rows, built from the documents that were read.

The table runs over a `View`, which presents sessions, claims, resources and queues as rows. If the
table needs data that has not been read, `Missing` names it; the step reads it and runs the table
again. The table's changes stay in the view, for `plan` to turn into one multi.
"""

from __future__ import annotations

from typing import Any

from lockfast.core import rows as r
from lockfast.core.commands import HOLDING
from lockfast.core.reasons import EXPIRED
from lockfast.core.rows import ResourceRow, Session, copied
from lockfast.stores.derived.steps import Instant
from lockfast.stores.derived.view import ClaimId, DerivedRows, Name
from lockfast.stores.zookeeper.layout import Owner
from lockfast.stores.zookeeper.loaded import Loaded
from lockfast.stores.zookeeper.loading import Loader, Missing
from lockfast.stores.zookeeper.owned import OwnSessions


class View(DerivedRows[Owner]):
    """The row port for one run of the table."""

    __slots__ = ("_arrival", "_loader", "_own")

    def __init__(self, loader: Loader, own: OwnSessions, instant: Instant, arrival: int) -> None:
        super().__init__(instant)
        self._loader = loader
        self._own = own
        self._arrival = arrival
        for one in loader.loaded.values():
            self._add_loaded(one)

    @property
    def loaded(self) -> dict[Name, Loaded]:
        return self._loader.loaded

    def why_ended(self, session: str) -> str:
        """Return why a session has ended that has left dead entries."""
        row = self._loader.sessions.get(session)
        return row.ended if row is not None and row.ended else EXPIRED

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
        row.waiting += sum(one.waiting_in(bucket) for bucket in document.buckets)
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
            self._find((session, int(n, 16)))
        return None

    def _find(self, of: ClaimId) -> None:
        """Raise Missing unless a claim that is in no document read so far is certainly absent."""
        if of in self.before:
            return  # deleted by the table
        where = self._loader.where(of)
        if where is None:
            raise Missing(claim=of)
        places, node = where
        for place in places:
            if place[:2] not in self.loaded:
                raise Missing(resource=place[:2])
        bucket = node.rpartition("/")[0]
        if places and bucket and self.loaded[places[0][:2]].may_wait_in(bucket, of):
            raise Missing(queue=places[0][:2], bucket=bucket, claim=of)

    def _session(self, session: str) -> Session | None:
        if session in self._loader.sessions:
            return copied(self._loader.sessions[session])  # type: ignore[no-any-return]
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
                if self._loader.is_exact:
                    self._look_beside(one, rank, is_ahead=reverse, is_found=bool(found))
            elif buckets:
                known_up_to = start + min(bucket.start for bucket in buckets)
                if len(found) < limit or found[-1][0] >= known_up_to:
                    raise Missing(queue=(kind, name))
        return found

    def _look_beside(self, one: Loaded, rank: str, *, is_ahead: bool, is_found: bool) -> None:
        """Raise Missing if a bucket that was not read may have the claim next to this rank.

        Of the buckets of one priority it is enough to read one: the claims in another one are
        farther away. A claim behind is searched for only if the document has none; it would get a
        hint that it can do without, since it looks at its queue with every keep-alive.
        """
        read = {b.head_start_ms for b in one.document.buckets if b.node in one.queued}
        for bucket in one.unread():
            may_have = bucket.start < rank if is_ahead else not is_found
            if may_have and bucket.head_start_ms not in read:
                raise Missing(queue=(one.kind, one.name), bucket=bucket.node, beside=rank)
