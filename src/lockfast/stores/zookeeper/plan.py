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
  - *The base of tokens*, if a token is allocated.

It does not check that the other entries are alive: a holder that is gone only makes room, and the
claims that wait for it watch its session.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

from lockfast.core.commands import HOLDING, REVOKED, WAITING, WAKE_GRANTED, WAKE_WANTED, Wake
from lockfast.core.rows import Claim, entered_of
from lockfast.stores.derived.stored import RELATIVE
from lockfast.stores.derived.view import ClaimId, Name
from lockfast.stores.zookeeper import layout as k
from lockfast.stores.zookeeper.context import Context
from lockfast.stores.zookeeper.layout import Base, Bucket, Document, Entry
from lockfast.stores.zookeeper.loaded import Loaded
from lockfast.stores.zookeeper.loading import Missing
from lockfast.stores.zookeeper.transport import Check, Create, Delete, Operation, Set
from lockfast.stores.zookeeper.view import View

SENT_MAX: Final = 8192
"""The size of the documents that one bell brings, in bytes. One multi may ring many bells."""


@dataclass
class _Ops:
    """The operations on one resource, in the order in which a multi needs them."""

    checks: list[Operation] = field(default_factory=list)
    creates: list[Operation] = field(default_factory=list)
    deletes: list[Operation] = field(default_factory=list)
    sets: list[Operation] = field(default_factory=list)

    @property
    def deleted(self) -> set[str]:
        return {operation.path for operation in self.deletes}


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
        self._view = view
        self._context = context
        self._own = context.own
        self._now_ms = view.instant.now_ms
        self._unique = f"{arrival:x}"
        self._tokens = 0
        """How many tokens the write allocates."""
        self._ops: dict[Name, _Ops] = {name: _Ops() for name in view.loaded}
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
        documents = {name: self._document(one) for name, one in view.loaded.items()}
        is_due = any(
            self._is_due(one, documents[name], tidies=tidies) for name, one in view.loaded.items()
        )
        if not self.changed and not is_due:
            return
        for of in sorted(self.changed):
            self._claim(of, before.get(of), self.claims.get(of), documents)
        if acting:
            self._sessions[acting] = None
        paths = self._context.paths
        self.operations += [Check(paths.session(session), 0) for session in self._sessions]
        if self._tokens:
            self.operations.append(self._base_operation(paths.base))
        for name, one in view.loaded.items():
            self.operations += self._resource(name, one, documents[name])
        self.operations += self._bells(wakes)

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

    def _is_due(self, one: Loaded, document: Document, *, tidies: bool) -> bool:
        old = one.document
        if tidies and one.exists and not document.entries and not document.closed_ms:
            return True
        if document.closed_ms != old.closed_ms and (tidies or document.closed_ms):
            return True
        return bool(document.entries) and document.limit != old.limit

    # ── claims ───────────────────────────────────────────────────────────────────────

    def _claim(
        self,
        of: ClaimId,
        before: Claim | None,
        after: Claim | None,
        documents: dict[Name, Document],
    ) -> None:
        stood = before is not None and before.state != REVOKED
        stands = after is not None and after.state != REVOKED
        if after is not None and after.token >= RELATIVE:
            self._tokens = max(self._tokens, after.token - RELATIVE + after.block)
            self._sessions[after.session] = None
            if before is not None:
                # Setting the node of a granted claim proves that it exists.
                first = after.places[0][:2]
                self._set(first, self._view.loaded[first].document.entries[of].node, b"")
        if before is None and after is not None:
            for i, place in enumerate(after.places):
                self._join(place[:2], documents[place[:2]], of, after, is_first=i == 0)
        elif stood and not stands and before is not None:
            for i, place in enumerate(before.places):
                one = self._view.loaded[place[:2]]
                node = (one.document.entries.get(of) or one.peeked[of]).node
                if after is not None and i == 0:
                    self._set(
                        place[:2], node, k.packed_taken(Entry(after, self._view.owners[of[0]]))
                    )
                else:
                    self._delete(place[:2], node)
        elif before is not None and not stood and after is None:
            for name, one in self._view.loaded.items():
                if of in one.taken:
                    self._delete(name, one.taken[of][1])

    def _join(
        self, name: Name, document: Document, of: ClaimId, claim: Claim, *, is_first: bool
    ) -> None:
        """Create the node of a new claim: below the resource or, if others wait, in a bucket."""
        one, ops = self._view.loaded[name], self._ops[name]
        entry = document.entries[of]
        node = entry.node
        others = [other.claim for key, other in document.entries.items() if key != of]
        waiting = sum(other.state == WAITING for other in others)
        joins = bool(document.buckets) or waiting >= self._context.sizes.direct_max
        if claim.state == WAITING and len(claim.places) == 1 and joins:
            bucket = self._bucket_for(document, claim, ops, one)
            del document.entries[of]
            node = f"{bucket.node}/{k.bucket_prefix(claim)}"
            data = k.data_of(k.packed_claim(entry))
            ops.creates.append(Create(f"{one.path}/{node}", data, ephemeral=True, sequence=True))
        else:
            ops.creates.append(Create(f"{one.path}/{node}", b"", ephemeral=True))
        if claim.state == WAITING:
            self._notify_holders([other for other in others if other.state == HOLDING])
        if is_first:
            self.entered, self.node = of, node

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

    def _bucket_for(self, document: Document, claim: Claim, ops: _Ops, one: Loaded) -> Bucket:
        """Return the bucket that a claim joins: the open one, or another if that is full."""
        head_start_ms = claim.entered_ms - entered_of(claim.rank)
        bucket, start = one.bucket_for(head_start_ms), claim.rank
        if bucket is not None:
            if not self._context.crowd(bucket.node).is_full(self._context.sizes):
                ops.checks.append(Check(f"{one.path}/{bucket.node}", 0))
                self.joined = bucket.node
                return bucket
            self._seal(one, document, bucket, ops)
            # Behind all claims in the full one, even if the clocks of their clients are ahead.
            start = max(start, k.following(self._context.crowd(bucket.node).last or bucket.start))
        opened = Bucket(f"q{self._unique}", start, head_start_ms)
        document.buckets.append(opened)
        ops.creates.append(Create(f"{one.path}/{opened.node}", b"", container=True))
        return opened

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

    def _set(self, name: Name, node: str, data: bytes) -> None:
        self._ops[name].sets.append(Set(f"{self._view.loaded[name].path}/{node}", data))

    def _delete(self, name: Name, node: str) -> None:
        self._ops[name].deletes.append(Delete(f"{self._view.loaded[name].path}/{node}"))

    # ── resources ────────────────────────────────────────────────────────────────────

    def _resource(self, name: Name, one: Loaded, document: Document) -> list[Operation]:
        ops, path = self._ops[name], one.path
        self._mark_closed(one, document, ops)
        if document == one.document and not one.is_refilled:
            # At most nodes in buckets change.
            relied_on: list[Operation] = []
            if one.children and (ops.deletes or ops.sets or not ops.creates):
                relied_on = [Check(path, one.version), *self._witness(one, ops)]
            return [*relied_on, *ops.checks, *ops.creates, *ops.deletes, *ops.sets]
        self._remove_buckets(one, document, ops)
        gone = {deleted.removeprefix(f"{path}/") for deleted in ops.deleted}
        created = {op.path.removeprefix(f"{path}/") for op in ops.creates}
        left = {node for node in (one.children | created) - gone if "/" not in node}
        after = Loaded(one.kind, one.name, path, True, one.version + 1, frozenset(left), document)
        after.taken = {of: found for of, found in one.taken.items() if of in self.claims}
        self.after[name] = after
        if not (document.entries or document.closed_ms or document.buckets or left):
            after.exists = False
            delete = [Delete(path, one.version)] if one.exists else []
            return [*ops.checks, *ops.deletes, *ops.sets, *delete]
        closed_for_ms = 0
        if self._view.instant.by_server and document.closed_ms > one.document.closed_ms:
            closed_for_ms = document.closed_ms - self._now_ms
            self.closed.append(name)
        by_server = self._view.instant.by_server
        values = k.packed(document, self.base, self._now_ms if by_server else -1, closed_for_ms)
        data = k.data_of(values)
        if len(data) * len(self._view.loaded) <= SENT_MAX:
            self._sent[name] = values
        if not one.children:
            # If the resource exists, it may be another node than the one that was read; that it can
            # be deleted proves that it still has no children.
            after.version = 1
            delete = [Delete(path, one.version)] if one.exists else []
            return [*delete, Create(path, container=True), *ops.creates, Set(path, data, 0)]
        operations = [*ops.checks, *ops.creates, *ops.deletes, *ops.sets]
        return [*self._witness(one, ops), *operations, Set(path, data, one.version)]

    def _remove_buckets(self, one: Loaded, document: Document, ops: _Ops) -> None:
        """Delete buckets that have no node left: full ones, and all when the lock becomes free.

        That a bucket can be deleted proves that no claim has joined it since it was read.
        """
        holders = [e.claim for e in document.entries.values() if e.claim.state == HOLDING]
        retains = any(holder.block > 1 and holder.token >= RELATIVE for holder in holders)
        listed = {bucket.node: bucket for bucket in document.buckets}
        for node, names in one.below.items():
            is_open = node in listed and not listed[node].is_sealed
            if one.queued[node] or (is_open and holders and not retains):
                continue
            if ops.deleted >= {f"{one.path}/{node}/{claim}" for claim in names}:
                self._delete((one.kind, one.name), node)
                document.buckets = [bucket for bucket in document.buckets if bucket.node != node]
            elif is_open:
                # Nodes of revoked claims are left. A claim that joined now would not be served.
                self._seal(one, document, listed[node], ops)
        if retains:
            # A claim that joins must see that the holder's client retains the lock.
            for bucket in document.buckets:
                self._seal(one, document, bucket, ops)

    def _seal(self, one: Loaded, document: Document, bucket: Bucket, ops: _Ops) -> None:
        """Let no further claim join a bucket."""
        if not bucket.is_sealed:
            at = document.buckets.index(bucket)
            document.buckets[at] = bucket._replace(is_sealed=True)
            ops.sets.append(Set(f"{one.path}/{bucket.node}", b"", 0))

    def _witness(self, one: Loaded, ops: _Ops) -> list[Operation]:
        """Require a node that existed when the resource was read, unless an operation does."""
        touched = (op.path.removeprefix(f"{one.path}/") for op in (*ops.deletes, *ops.sets))
        if any(node.partition("/")[0] in one.children for node in touched):
            return []
        return [Check(f"{one.path}/{min(one.children)}")]

    def _mark_closed(self, one: Loaded, document: Document, ops: _Ops) -> None:
        """Give a closed resource a node that keeps it when all claims have left."""
        marker, path = document.marker, one.path
        has_marker = bool(marker) and marker in one.children
        if document.closed_ms and not has_marker:
            document.marker = f"!{self._unique}"
            ops.creates.append(Create(f"{path}/{document.marker}"))
        elif not document.closed_ms:
            if has_marker:
                ops.deletes.append(Delete(f"{path}/{marker}"))
            document.marker = ""
