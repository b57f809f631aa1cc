"""Turn the changes of the lock table into one multi.

A plan checks everything the table's decision rests on:

  - of each resource, the version of its node, which every step there raises, except that claims
    join and leave buckets without it;
  - of a bucket that a claim joins, that it is open;
  - that this is still the node that was read, not another one of the same name: some node below
    it that existed then still exists (a node with children cannot be deleted, and no name below a
    resource is used twice);
  - of each granted claim, that its node exists and its session has not been ended;
  - that the acting session has not been ended;
  - the base, if a token is allocated.

This does not detect nodes that vanish with their sessions, and need not: a holder that is gone
only makes room, and the claims waiting for it watch its session.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from lockfast.core.commands import HOLDING, REVOKED, WAITING, Wake
from lockfast.core.rows import Claim
from lockfast.stores.derived.stored import RELATIVE
from lockfast.stores.derived.view import ClaimId, Name
from lockfast.stores.zookeeper import layout as k
from lockfast.stores.zookeeper.context import Context
from lockfast.stores.zookeeper.layout import Base, Bucket, Document, Entry
from lockfast.stores.zookeeper.transport import Check, Create, Delete, Operation, Set
from lockfast.stores.zookeeper.view import Loaded, Missing, View


@dataclass
class Plan:
    """One multi, and the state of resources and claims after it."""

    base: Base
    """The base from which the tokens of the write are derived."""
    operations: list[Operation] = field(default_factory=list)
    after: dict[Name, Loaded] = field(default_factory=dict)
    """Tokens that the write allocates are still relative."""
    claims: dict[ClaimId, Claim] = field(default_factory=dict)
    changed: set[ClaimId] = field(default_factory=set)
    nodes: dict[ClaimId, str] = field(default_factory=dict)
    """For each claim, the node of its first place, below the resource."""
    closed: list[Name] = field(default_factory=list)
    """Resources that the write closes: until an instant of the leader's clock at the write."""
    tokens: int = 0
    """How many tokens the write allocates."""
    raised: tuple[Base, int] | None = None
    """The base after the write, if the write changes it."""


@dataclass
class _Ops:
    """The operations on one resource, in the order in which a multi needs them."""

    checks: list[Operation] = field(default_factory=list)
    creates: list[Operation] = field(default_factory=list)
    deletes: list[Operation] = field(default_factory=list)
    sets: list[Operation] = field(default_factory=list)
    touched: set[str] = field(default_factory=set)
    """Existing nodes below the resource that some operation requires."""
    deleted: set[str] = field(default_factory=set)


class Planner:
    def __init__(self, view: View, context: Context, arrival: int, sealed: set[str]) -> None:
        """`sealed`: buckets that were found to be closed, whatever the document says."""
        assert context.base is not None
        self._view = view
        self._paths = context.paths
        self._own = context.own
        self._base, self._base_version = context.base
        self._now_ms = view.instant.now_ms
        self._unique = f"{arrival:x}"
        self._sizes = context.sizes
        self._sealed = sealed
        self._plan = Plan(self._base, claims=view.claims())
        self._ops: dict[Name, _Ops] = {name: _Ops() for name in view.loaded}
        self._sessions: dict[str, None] = {}
        self._bells: list[Operation] = []
        self._notices: list[Wake] = []

    def plan(self, acting: str, wakes: list[Wake], *, tidies: bool) -> Plan:
        """Return the multi to send; with `tidies`, also remove dead entries."""
        plan, view = self._plan, self._view
        before = view.before
        everything = {**before, **plan.claims}
        plan.changed = {of for of in everything if before.get(of) != plan.claims.get(of)}
        for of in plan.changed:
            # Each place stores a copy of the claim, so all of them change together.
            for place in (before.get(of) or plan.claims[of]).places:
                if place[:2] not in view.loaded:
                    raise Missing(resource=place[:2])
        documents = {name: self._document(one) for name, one in view.loaded.items()}
        is_due = any(
            self._is_due(one, documents[name], tidies=tidies) for name, one in view.loaded.items()
        )
        if not plan.changed and not is_due:
            return plan
        for of in sorted(plan.changed):
            self._claim(of, before.get(of), plan.claims.get(of), documents)
        self._wakes(wakes)
        operations: list[Operation] = []
        if acting:
            self._sessions[acting] = None
        for session in self._sessions:
            operations.append(Check(self._paths.session(session), 0))
        if plan.tokens:
            operations.append(self._base_operation())
        for name, one in view.loaded.items():
            operations += self._resource(name, one, documents[name])
        plan.operations = operations + self._bells
        return plan

    def _base_operation(self) -> Operation:
        """Check the base, or raise it if the write allocates more tokens than one write's share."""
        if self._plan.tokens <= k.STRIDE:
            return Check(self._paths.base, self._base_version)
        raised = self._base._replace(value=self._base.value + self._plan.tokens)
        self._plan.raised = (raised, self._base_version + 1)
        return Set(self._paths.base, k.data_of(list(raised)), self._base_version)

    def _document(self, one: Loaded) -> Document:
        """Return the new content of the resource's node."""
        row, old = self._view.resource_row(one.kind, one.name), one.document
        entries: dict[ClaimId, Entry] = {}
        for of, claim in self._plan.claims.items():
            if of in one.peeked:
                if of in self._plan.changed and claim.state != REVOKED:
                    bucket = one.peeked[of].bucket
                    raise Missing(refill=(one.kind, one.name), bucket=bucket, of=of)
                continue
            if claim.state != REVOKED and any(p[:2] == (one.kind, one.name) for p in claim.places):
                known = old.entries.get(of)
                bucket = known.bucket if known is not None else ""
                entries[of] = Entry(claim, self._view.owners[claim.session], bucket)
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
            given = after.token - RELATIVE + after.block
            self._plan.tokens = max(self._plan.tokens, given)
            self._sessions[after.session] = None
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
        """Create the node of a new claim, in the document's window or in a bucket."""
        one, ops = self._view.loaded[name], self._ops[name]
        entry = document.entries[of]
        bucket = None
        if claim.state == WAITING and len(claim.places) == 1:
            bucket = self._bucket_for(document, claim.rank, ops, one)
        if bucket is None:
            self._notify_holder(document, of)
            ops.creates.append(Create(f"{one.path}/{entry.node}", b"", True))
            data = b""
        else:
            del document.entries[of]
            claim.rank = k.rank_in_bucket(claim.rank, *of)
            entry = entry._replace(bucket=bucket.name)
            data = k.data_of(k.packed_claim(entry))
            ops.creates.append(Create(f"{one.path}/{entry.node}", data, True))
        if is_first:
            self._plan.nodes[of] = entry.node

    def _notify_holder(self, document: Document, of: ClaimId) -> None:
        """Tell a sole holder that the first claim has joined, so that it reads the document.

        Its release then finds the document as it assumes, and hands over in one write.
        """
        others = [entry.claim for key, entry in document.entries.items() if key != of]
        if len(others) == 1 and others[0].state == HOLDING:
            (holder,) = others
            inbox = self._view.owners[holder.session].inbox
            self._notices.append(Wake(inbox, holder.session, holder.n, k.JOINED))

    def _bucket_for(self, document: Document, rank: str, ops: _Ops, one: Loaded) -> Bucket | None:
        """Return the bucket of a long queue for a claim of this rank; None for the document."""
        buckets = document.buckets
        at = max((i for i, bucket in enumerate(buckets) if bucket.start <= rank), default=-1)
        if buckets and at < 0:
            return None
        if buckets:
            chosen = buckets[at]
            is_closed = chosen.is_sealed or chosen.name in self._sealed
            is_last = at == len(buckets) - 1
            is_full = one.last_count + one.joined >= self._sizes.bucket_max
            if not is_closed and not (is_last and is_full):
                ops.checks.append(Check(f"{one.path}/{chosen.node}", 0))
                return chosen
            if not is_last:
                return None
        else:
            waiting = [e for e in document.entries.values() if e.claim.state == WAITING]
            is_short = len(waiting) <= self._sizes.window_max
            if is_short or any(e.claim.rank > rank for e in waiting):
                return None
        opened = Bucket(self._unique, rank)
        buckets.append(opened)
        ops.creates.append(Create(f"{one.path}/{opened.node}", b"", container=True))
        return opened

    def _wakes(self, wakes: list[Wake]) -> None:
        """Set the nodes of granted claims, which proves that they exist, and ring their bells."""
        granted = {
            of
            for of in self._plan.changed
            if of in self._view.before
            and of in self._plan.claims
            and self._plan.claims[of].token >= RELATIVE
        }
        rings: dict[str, list[Wake]] = {}
        for of in sorted(granted):
            name = self._plan.claims[of].places[0][:2]
            self._set(name, self._view.loaded[name].document.entries[of].node, b"")
        for wake in [*wakes, *self._notices]:
            mine = self._own.get(wake.session)
            if wake.n and (mine is None or mine.deliver is None):
                rings.setdefault(wake.session, []).append(wake)
        for session, told in rings.items():
            bell = self._paths.bell(session)
            self._bells.append(Set(bell, k.packed_rings(told, self._base)))

    def _set(self, name: Name, node: str, data: bytes) -> None:
        ops = self._ops[name]
        if node not in ops.touched:
            ops.touched.add(node)
            ops.sets.append(Set(f"{self._view.loaded[name].path}/{node}", data))

    def _delete(self, name: Name, node: str) -> None:
        ops = self._ops[name]
        ops.touched.add(node)
        ops.deleted.add(node)
        ops.deletes.append(Delete(f"{self._view.loaded[name].path}/{node}"))

    # ── resources ────────────────────────────────────────────────────────────────────

    def _resource(self, name: Name, one: Loaded, document: Document) -> list[Operation]:
        ops, path = self._ops[name], one.path
        self._mark_closed(one, document, ops)
        if document == one.document and not one.is_refilled:
            # At most nodes in buckets change.
            relied_on = self._relied_on(one) if ops.touched or not ops.creates else []
            return [*relied_on, *ops.checks, *ops.creates, *ops.deletes, *ops.sets]
        if one.open_reads:
            raise Missing(seal=name)
        self._replace_buckets(one, document, ops)
        created = {op.path.removeprefix(f"{path}/") for op in ops.creates}
        left = {c for c in one.children | created if c not in ops.deleted and "/" not in c}
        after = Loaded(one.kind, one.name, path, True, one.version + 1, frozenset(left), document)
        after.taken = {of: found for of, found in one.taken.items() if of in self._plan.claims}
        self._plan.after[name] = after
        closed_for_ms = 0
        if self._view.instant.by_server and document.closed_ms > one.document.closed_ms:
            closed_for_ms = document.closed_ms - self._now_ms
            self._plan.closed.append(name)
        data = k.packed(document, self._base, closed_for_ms)
        is_empty = not (document.entries or document.closed_ms or document.buckets)
        if not one.exists:
            if is_empty:
                after.exists = False
                return []
            after.version = 1
            return [Create(path, b"", container=True), *ops.creates, Set(path, data, 0)]
        if is_empty and not left:
            after.exists = False
            return [*ops.checks, *ops.deletes, *ops.sets, Delete(path, one.version)]
        if not ops.touched:
            witness = next(iter(sorted(one.children)), None)
            if witness is None:
                # The resource has no children, so it may be another node than the one that was
                # read; that it can be deleted proves that it still has none.
                after.version = 1
                create = Create(path, b"", container=True)
                return [Delete(path, one.version), create, *ops.creates, Set(path, data, 0)]
            ops.sets.append(Check(f"{path}/{witness}"))
        operations = [*ops.checks, *ops.creates, *ops.deletes, *ops.sets]
        return [*operations, Set(path, data, one.version)]

    def _replace_buckets(self, one: Loaded, document: Document, ops: _Ops) -> None:
        """Delete sealed buckets that are empty; open a bucket after the last one was sealed.

        Otherwise all claims that join at this moment would compete for opening one.
        """
        for node in one.emptied:
            self._delete((one.kind, one.name), node)
        if one.next_start and (not document.buckets or document.buckets[-1].is_sealed):
            opened = Bucket(self._unique, one.next_start)
            document.buckets.append(opened)
            path = f"{one.path}/{opened.node}"
            ops.creates.append(Create(path, b"", container=True))
            # The server deletes only containers that have had children.
            ops.creates += [Create(f"{path}/-"), Delete(f"{path}/-")]

    def _relied_on(self, one: Loaded) -> list[Operation]:
        """Check a resource that does not change but that the decision may rely on."""
        if not one.exists or not one.children:
            return []
        witness = min(one.children)
        return [Check(one.path, one.version), Check(f"{one.path}/{witness}")]

    def _mark_closed(self, one: Loaded, document: Document, ops: _Ops) -> None:
        """Give a closed resource a node that keeps it when all claims have left."""
        marker, path = document.marker, one.path
        has_marker = bool(marker) and marker in one.children
        if document.closed_ms and not has_marker:
            document.marker = f"!{self._unique}"
            ops.creates.append(Create(f"{path}/{document.marker}"))
        elif not document.closed_ms:
            if has_marker:
                ops.touched.add(marker)
                ops.deleted.add(marker)
                ops.deletes.append(Delete(f"{path}/{marker}"))
            document.marker = ""
