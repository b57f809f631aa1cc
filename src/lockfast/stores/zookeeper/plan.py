"""Turn the changes of the lock table into one multi.

The multi checks everything the table's decision rests on:

  - *The version of each document*, which every step there raises: no claim has entered, left or
    been granted since it was read, except that claims join and leave buckets. A bucket that a claim
    joins is open; a bucket that is deleted has no claim in it.
  - *A node below each resource* that existed when it was read. Versions restart when a node is
    deleted and created again, but a node with children cannot be deleted, and no name below a
    resource is used twice, so it is still the same resource. If there is no such node, the multi
    deletes the resource, which succeeds only while it has no children, and creates it again.
  - *The node of the acting session, at version 0.* Ending a session sets that node, so from then on
    the session can do nothing, and be granted nothing, even before its client knows.
  - *The nodes of each claim that is granted, and of its session.* If an heir is dead, the multi
    fails and the step reads again.
  - *The base*, if a token is allocated or there is an event to log.

It does not check that the other entries are alive: a holder that is gone only makes room, and the
claims that wait for it watch its session.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from lockfast.core.commands import (
    HOLDING,
    REVOKED,
    WAITING,
    WAKE_GRANTED,
    WAKE_WANTED,
    Event,
    Wake,
)
from lockfast.core.reasons import CLOSED, EXPIRED
from lockfast.core.rows import Claim, entered_of
from lockfast.stores.derived.stored import RELATIVE
from lockfast.stores.derived.view import ClaimId, Name
from lockfast.stores.zookeeper import entries
from lockfast.stores.zookeeper import layout as k
from lockfast.stores.zookeeper.context import Context
from lockfast.stores.zookeeper.layout import Base, Bucket, Document, Entry
from lockfast.stores.zookeeper.loaded import Loaded
from lockfast.stores.zookeeper.loading import Missing
from lockfast.stores.zookeeper.transport import Check, Create, Delete, Operation, Set
from lockfast.stores.zookeeper.view import View

SENT_MAX: Final = 8192
"""The size of the documents that one bell brings, in bytes. One multi may ring many bells."""


class _Change:
    """What a multi does to one resource: its new document, and the operations on nodes below it."""

    def __init__(self, one: Loaded, document: Document) -> None:
        self.one = one
        self.document = document
        # In the order in which a multi needs them.
        self.checks: list[Operation] = []
        self.creates: list[Operation] = []
        self.deletes: list[Operation] = []
        self.sets: list[Operation] = []

    def path(self, node: str) -> str:
        return f"{self.one.path}/{node}"

    def set(self, node: str, data: bytes = b"", version: int = -1) -> None:
        self.sets.append(Set(self.path(node), data, version))

    def delete(self, node: str) -> None:
        self.deletes.append(Delete(self.path(node)))

    def left(self) -> frozenset[str]:
        """Return the names of the nodes below the resource after the multi."""
        children = {self.path(node) for node in self.one.children}
        paths = children.union(op.path for op in self.creates) - {op.path for op in self.deletes}
        below = (path.removeprefix(self.path("")) for path in paths)
        return frozenset(node for node in below if "/" not in node)

    def witness(self) -> list[Operation]:
        """Require a node that existed when the resource was read, unless an operation does."""
        start = len(self.path(""))
        touched = (op.path[start:].partition("/")[0] for op in (*self.deletes, *self.sets))
        if any(node in self.one.children for node in touched):
            return []
        return [Check(self.path(min(self.one.children)))]

    def seal(self, bucket: Bucket) -> None:
        """Let no further claim join a bucket."""
        if not bucket.is_sealed:
            at = self.document.buckets.index(bucket)
            self.document.buckets[at] = bucket._replace(is_sealed=True)
            self.set(bucket.node, version=0)

    def remove_buckets(self) -> None:
        """Delete buckets that have no node left: full ones, and all when the lock becomes free.

        That a bucket can be deleted proves that no claim has joined it since it was read.
        """
        one, document = self.one, self.document
        holders = [e.claim for e in document.entries.values() if e.claim.state == HOLDING]
        retains = any(holder.block > 1 and holder.token >= RELATIVE for holder in holders)
        listed = {bucket.node: bucket for bucket in document.buckets}
        deleted = {op.path for op in self.deletes}
        for node, names in one.below.items():
            is_open = node in listed and not listed[node].is_sealed
            if one.queued[node] or (is_open and holders and not retains):
                continue
            if deleted >= {self.path(f"{node}/{name}") for name in names}:
                self.delete(node)
                document.buckets = [bucket for bucket in document.buckets if bucket.node != node]
            elif is_open:
                # Nodes of revoked claims are left. A claim that joined now would not be served.
                self.seal(listed[node])
        if retains:
            # A claim that joins must see that the holder's client retains the lock.
            for bucket in document.buckets:
                self.seal(bucket)

    def mark_closed(self, unique: str) -> None:
        """Give a closed resource a node that keeps it when all claims have left."""
        document, marker = self.document, self.document.marker
        has_marker = bool(marker) and marker in self.one.children
        if document.closed_ms and not has_marker:
            document.marker = f"!{unique}"
            self.creates.append(Create(self.path(document.marker)))
        elif not document.closed_ms:
            if has_marker:
                self.delete(marker)
            document.marker = ""


class Plan:
    """One multi, and the state of resources and claims after it."""

    def __init__(self, view: View, context: Context, arrival: int) -> None:
        assert context.base is not None
        self.base, self._base_version = context.base
        """The base from which the tokens of the write are derived."""
        self.operations: list[Operation] = []
        self.claims = view.claims()
        before, after = view.before, self.claims
        self.changed = {of for of in {**before, **after} if before.get(of) != after.get(of)}
        self.after: dict[Name, Loaded] = {}
        """Tokens that the write allocates are still relative."""
        self.entered: ClaimId | None = None
        """The new claim."""
        self.node = ""
        """The node of its first place, below the resource; in a bucket, without the number that the
        server appends."""
        self.joined = ""
        """The bucket that it joins without a change of the document."""
        self.closed: list[Name] = []
        """Resources that the write closes: until an instant of the leader's clock at the write."""
        self.wakes: list[Wake] = []
        """Wakes in addition to the table's."""
        self.raised: tuple[Base, int] | None = None
        """The base after the write, if the write changes it."""
        self.is_logged = False
        """The write adds entries to the log."""
        self.entry = 0
        """The number of the last one, once it is known."""
        self._view = view
        self._context = context
        self._own = context.own
        self._now_ms = view.instant.now_ms
        self._logs = self.base.log_until_ms > self._now_ms
        self._drops_dead = False
        self._ended: list[Event] = []
        """The events of claims that have vanished."""
        self._unique = f"{arrival:x}"
        self._tokens = 0
        """How many tokens the write allocates."""
        self._changes: dict[Name, _Change] = {}
        self._sessions: dict[str, None] = {}
        """Sessions that must not have ended."""
        self._notices: list[Wake] = []
        self._sent: dict[Name, list[Any]] = {}
        """The documents that the write sets and that bells may bring."""

    def make(self, acting: str, wakes: list[Wake], *, tidies: bool) -> None:
        """Make the multi for a step of the session `acting`; `tidies`: remove dead entries."""
        view, before = self._view, self._view.before
        for of in self.changed:
            # Each place stores a copy of the claim, so all of them change together.
            for place in (before.get(of) or self.claims[of]).places:
                if place[:2] not in view.loaded:
                    raise Missing(resource=place[:2])
        # Their events are logged by the step that removes them, so it should not wait for a change.
        self._drops_dead = tidies and self._logs
        self._changes = {
            name: _Change(one, self._document(one)) for name, one in view.loaded.items()
        }
        is_due = any(self._is_due(change, tidies=tidies) for change in self._changes.values())
        if not self.changed and not is_due:
            return
        for of in sorted(self.changed):
            self._claim(of, before.get(of), self.claims.get(of))
        if acting:
            self._sessions[acting] = None
        paths = self._context.paths
        self.operations += [Check(paths.session(session), 0) for session in self._sessions]
        if self._tokens:
            self.operations.append(self._base_operation(paths.base))
        for name, change in self._changes.items():
            self.operations += self._resource(name, change)
        self.operations += self._bells(wakes)
        self._log()

    def _log(self) -> None:
        """Add the events to the log, if it is written, and notify its readers."""
        events, paths = [*self._ended, *self._view.logged], self._context.paths
        if events and not self._tokens:
            self.operations.append(Check(paths.base, self._base_version))
        if events and self._logs:
            self.is_logged = True
            path = paths.log(self.base.log_number)
            for data in entries.packed(events, self.base):
                self.operations.append(Create(f"{path}/{entries.PREFIX}", data, sequence=True))
            self.operations.append(Set(path, b""))

    def _vanished(self, name: Name, one: Loaded) -> Iterator[Event]:
        """Yield the events of dead entries, which the write removes from a document."""
        for claim, owner, _ in one.dead:
            reason = self._view.why_ended(claim.session)
            what = {CLOSED: "released", EXPIRED: "expired"}.get(reason, "revoked")
            if claim.state != HOLDING and what != "revoked":
                what = "gave_up"
            mode = next(place.mode for place in claim.places if place[:2] == name)
            yield Event(
                0, self._view.instant.wall_us // 1000, what, *name, mode, claim.session, claim.n,
                owner.owner, claim.token, reason,
            )  # fmt: skip

    def _base_operation(self, path: str) -> Operation:
        """Check the base, or raise it if the write allocates more tokens than one write's share."""
        if self._tokens <= k.STRIDE:
            return Check(path, self._base_version)
        raised = self.base._replace(value=self.base.value + self._tokens)
        self.raised = (raised, self._base_version + 1)
        return Set(path, k.data_of(list(raised)), self._base_version)

    def _document(self, one: Loaded) -> Document:
        """Return the new content of the resource's node."""
        row, old = self._view.resource_row(one.kind, one.name), one.document
        entries: dict[ClaimId, Entry] = {}
        for of, claim in self.claims.items():
            if of in one.peeked:
                if of in self.changed and claim.state != REVOKED:
                    bucket = one.peeked[of].bucket
                    raise Missing(queue=(one.kind, one.name), bucket=bucket, claim=of)
                continue
            if claim.state != REVOKED and any(p[:2] == (one.kind, one.name) for p in claim.places):
                known = old.entries.get(of)
                queued = known.queued if known is not None else ""
                entries[of] = Entry(claim, self._view.owners[claim.session], queued)
        closed_ms = row.closed_ms if row.closed_ms > self._now_ms else 0
        return Document(entries, row.limit, closed_ms, old.marker, list(old.buckets))

    def _is_due(self, change: _Change, *, tidies: bool) -> bool:
        old, new = change.one.document, change.document
        if tidies and change.one.exists and not new.entries and not new.closed_ms:
            return True
        if self._drops_dead and change.one.dead:
            return True
        if new.closed_ms != old.closed_ms and (tidies or new.closed_ms):
            return True
        return bool(new.entries) and new.limit != old.limit

    # ── claims ───────────────────────────────────────────────────────────────────────

    def _claim(self, of: ClaimId, before: Claim | None, after: Claim | None) -> None:
        stood = before is not None and before.state != REVOKED
        stands = after is not None and after.state != REVOKED
        if after is not None and after.token >= RELATIVE:
            self._tokens = max(self._tokens, after.token - RELATIVE + after.block)
            self._sessions[after.session] = None
            if before is not None:
                # Setting the node of a granted claim proves that it exists.
                first = self._changes[after.places[0][:2]]
                first.set(first.one.document.entries[of].node)
        if before is None and after is not None:
            self.entered = of
            for place in reversed(after.places):
                self.node = self._join(self._changes[place[:2]], of, after)
        elif stood and not stands and before is not None:
            for i, place in enumerate(before.places):
                change = self._changes[place[:2]]
                node = (change.one.document.entries.get(of) or change.one.peeked[of]).node
                if after is not None and i == 0:
                    change.set(node, k.packed_taken(Entry(after, self._view.owners[of[0]])))
                else:
                    change.delete(node)
        elif before is not None and not stood and after is None:
            for change in self._changes.values():
                if of in change.one.taken:
                    change.delete(change.one.taken[of][1])

    def _join(self, change: _Change, of: ClaimId, claim: Claim) -> str:
        """Create the node of a new claim: below the resource or, if others wait, in a bucket.

        Return the node, in a bucket without the number that the server appends.
        """
        document = change.document
        entry = document.entries[of]
        node, data = entry.node, b""
        others = [other.claim for key, other in document.entries.items() if key != of]
        waiting = sum(other.state == WAITING for other in others)
        is_first = not document.buckets and waiting < self._context.sizes.direct_max
        if claim.state == WAITING and len(claim.places) == 1 and not is_first:
            del document.entries[of]
            node = f"{self._bucket_for(change, claim)}/{k.bucket_prefix(claim)}"
            data = k.data_of(k.packed_claim(entry))
        creating = Create(change.path(node), data, ephemeral=True, sequence="/" in node)
        change.creates.append(creating)
        if claim.state == WAITING:
            self._notify_holders([other for other in others if other.state == HOLDING])
        return node

    def _notify_holders(self, holders: list[Claim]) -> None:
        """Tell clients that retain the lock that others want it; the table does so only if the
        queue was certainly empty. Send a changed document to a sole holder, so that its release
        hands over in one write."""
        for holder in holders:
            inbox = self._view.owners[holder.session].inbox
            if holder.block > 1:
                self.wakes.append(Wake(inbox, holder.session, holder.n, WAKE_WANTED))
            if len(holders) == 1 and not self.joined:
                self._notices.append(Wake(inbox, holder.session, holder.n, k.JOINED))

    def _bucket_for(self, change: _Change, claim: Claim) -> str:
        """Return the bucket that a claim joins: the open one, or another if that is full."""
        head_start_ms = claim.entered_ms - entered_of(claim.rank)
        bucket, start = change.one.bucket_for(head_start_ms), claim.rank
        if bucket is not None:
            crowd = self._context.crowd(bucket.node)
            if not crowd.is_full(self._context.sizes):
                change.checks.append(Check(change.path(bucket.node), 0))
                self.joined = bucket.node
                return bucket.node
            change.seal(bucket)
            # Behind all claims in the full one, even if the clocks of their clients are ahead.
            start = max(start, k.following(crowd.last or bucket.start))
        opened = Bucket(f"q{self._unique}", start, head_start_ms)
        change.document.buckets.append(opened)
        change.creates.append(Create(change.path(opened.node), container=True))
        return opened.node

    def _bells(self, wakes: list[Wake]) -> list[Operation]:
        """Ring the bells of sessions in other processes.

        A bell brings the document of each lock that was granted, or whose queue was joined, so that
        the next step of its client need not read it.
        """
        rings: dict[str, list[Wake]] = {}
        for wake in dict.fromkeys([*wakes, *self.wakes, *self._notices]):
            mine = self._own.get(wake.session)
            if wake.n and (mine is None or mine.deliver is None):
                rings.setdefault(wake.session, []).append(wake)
        operations: list[Operation] = []
        for session, rung in rings.items():
            names = {
                place[:2]: None
                for wake in rung
                if wake.what in (WAKE_GRANTED, k.JOINED)
                for place in self.claims[session, wake.n].places
                if place[:2] in self._sent
            }
            documents = [[*name, self.after[name].version, self._sent[name]] for name in names]
            data = k.packed_rings(rung, self.base, documents)
            operations.append(Set(self._context.paths.bell(session), data))
        return operations

    # ── resources ────────────────────────────────────────────────────────────────────

    def _resource(self, name: Name, change: _Change) -> list[Operation]:
        one, document, path = change.one, change.document, change.one.path
        change.mark_closed(self._unique)
        is_same = document == one.document and not one.is_refilled
        is_same &= not (self._drops_dead and one.dead)
        if not is_same:
            self._ended += self._vanished(name, one)
            change.remove_buckets()
        below = [*change.checks, *change.creates, *change.deletes, *change.sets]
        if is_same:
            # At most nodes in buckets change. A claim that joins one relies on nothing else.
            only_joins = change.creates and not (change.deletes or change.sets)
            if only_joins or not one.children:
                return below
            return [Check(path, one.version), *change.witness(), *below]
        after = Loaded(one.kind, one.name, path, True, one.version + 1, change.left(), document)
        after.taken = {of: found for of, found in one.taken.items() if of in self.claims}
        self.after[name] = after
        if not (document.entries or document.closed_ms or document.buckets or after.children):
            after.exists = False
            return [*below, Delete(path, one.version)] if one.exists else below
        by_server, closed_for_ms = self._view.instant.by_server, 0
        if by_server and document.closed_ms > one.document.closed_ms:
            closed_for_ms = document.closed_ms - self._now_ms
            self.closed.append(name)
        values = k.packed(document, self.base, self._now_ms if by_server else -1, closed_for_ms)
        data = k.data_of(values)
        if len(data) * len(self._changes) <= SENT_MAX:
            self._sent[name] = values
        if not one.children:
            # If the resource exists, it may be another node than the one that was read; that it can
            # be deleted proves that it still has no children.
            after.version = 1
            delete = [Delete(path, one.version)] if one.exists else []
            return [*delete, Create(path, container=True), *below, Set(path, data, 0)]
        return [*change.witness(), *below, Set(path, data, one.version)]
