"""Read resources: documents, which of their claims are alive, and the buckets of long queues."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final, NamedTuple, TypeAlias

from lockfast.core import commands as c
from lockfast.core.commands import Place
from lockfast.core.rows import Session
from lockfast.stores.derived.steps import Settle
from lockfast.stores.derived.stored import decode
from lockfast.stores.derived.view import ClaimId, Name
from lockfast.stores.zookeeper import layout as k
from lockfast.stores.zookeeper.context import Requests, remember
from lockfast.stores.zookeeper.layout import Base, Bucket, Entry, Queued
from lockfast.stores.zookeeper.loaded import Loaded
from lockfast.stores.zookeeper.owned import OwnSession
from lockfast.stores.zookeeper.transport import Answer, Children, Get, Request, Stat, Sync

PURGED_MAX: Final = 100
"""About how many claims of an ended session one step deletes from buckets. Further ones vanish with
the session's link."""


class Missing(Exception):  # not an error: the step reads more
    """The table needs data that has not been read."""

    def __init__(
        self,
        *,
        resource: Name | None = None,
        claim: ClaimId | None = None,
        queue: Name | None = None,
        bucket: str = "",
        beside: str = "",
    ) -> None:
        self.resource = resource
        self.claim = claim
        """A claim of unknown place or, with `bucket`, one that is there."""
        self.queue = queue
        """A resource of which more claims are needed: of this `bucket`, or else the next ones."""
        self.bucket = bucket
        self.beside = beside
        """The claims next to this rank are needed, from this bucket."""


class Purge(NamedTuple):
    """Remove the claims of an ended session from these resources, and settle them."""

    session: str
    reason: str
    what: str
    places: tuple[Place, ...]


Steppable: TypeAlias = c.Command | Settle | Purge


class Outdated(Exception):  # not an error: the loader reads the resource again
    """A resource has changed since its document was read."""


class Loader:
    """What one step has read: resources, and sessions that may have ended."""

    def __init__(self, requests: Requests, command: Steppable) -> None:
        self._requests = requests
        self._context = requests.context
        self._own = requests.context.own
        self._command = command
        self.loaded: dict[Name, Loaded] = {}
        self.sessions: dict[str, Session | None] = {}
        """Sessions whose nodes were read, because they may have ended."""
        self._found: dict[ClaimId, tuple[tuple[Place, ...], str]] = {}
        """The places and nodes of claims of other processes that were searched for."""

    @property
    def is_exact(self) -> bool:
        """Whether the command is about the claims next to one in a queue."""
        return isinstance(self._command, c.Look | c.Leave | c.Revoke)

    def assume(self, one: Loaded) -> None:
        """Take a resource to be as it was left, without reading it."""
        self.loaded[one.kind, one.name] = one

    def absent(self, name: Name) -> Loaded:
        return Loaded(*name, self._context.paths.resource(*name))

    def where(self, of: ClaimId) -> tuple[tuple[Place, ...], str] | None:
        """Return the places of a claim, () if it does not exist, and its node; None if unknown."""
        own = self._own.get(of[0])
        if of in self._found or own is None:
            return self._found.get(of)
        claim = own.claims.get(of[1])
        return (claim.places, claim.node) if claim is not None else ((), "")

    # ── documents ────────────────────────────────────────────────────────────────────

    async def load(self, names: Sequence[Name], *, fresh: bool = False) -> None:
        """Read resources, and which of the claims in their documents are alive."""
        if not names:
            return
        context = self._context
        requests: list[Request] = [Sync(context.paths.root)] if fresh else []
        for name in names:
            path = context.paths.resource(*name)
            requests += [Get(path), Children(path)]
        answers = (await self._requests.call(*requests))[-2 * len(names) :]
        for i, name in enumerate(names):
            one = self.absent(name)
            node, below = answers[2 * i : 2 * i + 2]
            # A resource was replaced between the two reads if they differ: a node below the new one
            # would not prove that the document that was read is current.
            while node.stat and below.stat and node.stat.czxid != below.stat.czxid:
                node, below = await self._requests.call(Get(one.path), Children(one.path))
            self._show(one, node, below)
            await self._part(one)
            one.seen_ms = context.network.now_ms()
            remember(context.known, name, one.copy())
            try:
                await self._read_buckets(one)
            except Outdated:
                await self.load([name], fresh=True)
            else:
                self.loaded[name] = one

    def _show(self, one: Loaded, node: Answer, below: Answer) -> None:
        """Let a resource be as reads of its document and of the names below it show it."""
        if node.stat is not None and not below.error:
            one.exists, one.version = True, node.stat.version
            one.children = frozenset(below.children)
            # Without data it was created but not written yet; no step leaves a node like this.
            if node.data:
                one.document = k.document_from(self._context.label, decode(node.data), node.stat)
            # The server deletes containers whose last child is gone, listed or not.
            buckets = one.document.buckets
            one.document.buckets = [bucket for bucket in buckets if bucket.node in one.children]

    async def _part(self, one: Loaded) -> None:
        """Separate live entries from dead ones, and find revoked claims."""
        entries = one.document.entries
        buckets = sorted({entry.bucket for entry in entries.values() if entry.bucket})
        alive = set(one.children)
        requests: list[Request] = [Children(f"{one.path}/{bucket}") for bucket in buckets]
        own = self._not_found(one)
        requests += [Get(f"{one.path}/{node}") for node in own.values()]
        answers = await self._requests.call(*requests) if requests else ()
        for bucket, answer in zip(buckets, answers, strict=False):
            alive |= {f"{bucket}/{node}" for node in answer.children}
        for (of, node), answer in zip(own.items(), answers[len(buckets) :], strict=True):
            taken = k.taken_from(answer.data)
            if taken is not None:
                one.taken[of] = (taken, node)
        for of, entry in list(entries.items()):
            if entry.node not in alive or self._is_over(of[0]):
                one.dead.append(entries.pop(of))

    def _is_over(self, session: str) -> bool:
        """Return whether a session is known to have ended."""
        found = self.sessions.get(session, False)
        return found is None or (isinstance(found, Session) and bool(found.ended))

    def _not_found(self, one: Loaded) -> dict[ClaimId, str]:
        """Return claims that the command concerns and the document lacks, with their nodes."""
        session = getattr(self._command, "session", "")
        found: dict[ClaimId, str] = {}
        for n in numbers_in(self._command, self._own.get(session)):
            of = (session, n)
            places, node = self.where(of) or ((), "")
            node = node or k.place_node(*of)
            is_in_bucket = "/" in node and places[0][:2] == (one.kind, one.name)
            if of not in one.document.entries and (is_in_bucket or node in one.children):
                found[of] = node
        return found

    # ── further reads ────────────────────────────────────────────────────────────────

    async def read_on(self, missing: Missing) -> None:
        if missing.resource is not None:
            await self.load([missing.resource])
        elif missing.queue is not None:
            try:
                await self._read_bucket(self.loaded[missing.queue], missing)
            except Outdated:
                await self.load([missing.queue], fresh=True)
        elif missing.claim is not None:
            await self._locate(missing.claim)

    async def _locate(self, of: ClaimId) -> None:
        """Find a claim of another process: where it was last seen, or else anywhere."""
        for one in list(self._context.known.values()):
            if of in one.document.entries:
                self._found[of] = one.document.entries[of].claim.places, ""
                await self.load([(one.kind, one.name)])
                if of in self.loaded[one.kind, one.name].document.entries:
                    return
                break
        self._found[of] = (), ""
        # Record all that are found: a command may be about many claims.
        for one in await load_all(self._requests):
            for key, entry in one.document.entries.items():
                self._found[key] = entry.claim.places, entry.node

    # ── buckets ──────────────────────────────────────────────────────────────────────

    async def _read_buckets(self, one: Loaded) -> None:
        """Read from the buckets of a resource what the command always needs."""
        command, buckets = self._command, one.document.buckets
        if not buckets:
            return
        if isinstance(command, c.Claims):
            for bucket in buckets:
                await self._refill(one, bucket, lambda _: True)
        elif isinstance(command, c.Inspect) or self._asks_whether_wanted(one):
            await self._read_names(one, *buckets)
        elif isinstance(command, Purge):
            for bucket in buckets:
                if len(one.peeked) < PURGED_MAX:
                    await self._peek(one, bucket, lambda q: q.session == command.session)
        elif isinstance(command, c.Enter):
            joined = one.bucket_for(command.head_start_ms)
            if joined is not None:
                await self._read_names(one, joined)
                self._context.crowd(joined.node).counted_in(one, joined)

    def _asks_whether_wanted(self, one: Loaded) -> bool:
        """Return whether the reply says that others wait for a claim that its client retains."""
        command = self._command
        if not isinstance(command, c.Look | c.Enter | c.Convert):
            return False
        entry = one.document.entries.get((command.session, command.n))
        return entry is not None and entry.claim.block > 1

    async def _read_bucket(self, one: Loaded, missing: Missing) -> None:
        """Read claims that wait in a bucket, or the next claims of the queue."""
        of, buckets = missing.claim, one.document.buckets
        named = next((bucket for bucket in buckets if bucket.node == missing.bucket), None)
        bucket = named or min(one.unread(), key=lambda bucket: bucket.start)
        if missing.beside:
            await self._peek(one, bucket, beside=missing.beside)
        elif of is None or of in one.peeked:
            await self._refill(one, bucket, lambda q: q.of == of)
        else:
            wanted = {of}
            if isinstance(self._command, c.Break):
                wanted.update((seen.session, seen.n) for seen in self._command.witnesses)
            await self._peek(one, bucket, lambda q: q.of in wanted)

    async def _read_names(self, one: Loaded, *buckets: Bucket) -> None:
        """Read which claims wait in buckets and are not in the document.

        The names are no older than this request: an outdated list would lack claims that have
        joined.
        """
        paths = [f"{one.path}/{bucket.node}" for bucket in buckets]
        _, *answers = await self._requests.call(Sync(one.path), *map(Children, paths))
        for bucket, answer in zip(buckets, answers, strict=True):
            if not answer.error:
                one.below[bucket.node] = frozenset(answer.children)
            queued = k.queued_in(bucket, answer.children)
            one.queued[bucket.node] = [q for q in queued if q.number > bucket.moved]

    async def _refill(
        self, one: Loaded, bucket: Bucket, is_wanted: Callable[[Queued], bool]
    ) -> None:
        """Move the first claims of a bucket into the document: a window, and up to those wanted.

        Claims that join the bucket after this have higher numbers.
        """
        await self._read_names(one, bucket)
        queued = one.queued[bucket.node]
        wanted = [i + 1 for i, q in enumerate(queued) if is_wanted(q)]
        count = max([self._context.sizes.window_max, *wanted])
        moving, staying = queued[:count], queued[count:]
        found = await self._read_entries(one, bucket, moving)
        one.queued[bucket.node] = staying
        # A claim may have left since it was peeked at.
        moved = {q.of for q in moving}
        left = {f"{bucket.node}/{node}" for node in one.below.get(bucket.node, ())}
        one.peeked = {
            of: entry
            for of, entry in one.peeked.items()
            if of not in moved and (entry.bucket != bucket.node or entry.queued in left)
        }
        buckets = list(one.document.buckets)
        at = buckets.index(bucket)
        if not staying and (bucket.is_sealed or bucket.node not in one.below):
            del buckets[at]
        elif moving:
            first = staying[0] if staying else moving[-1]
            buckets[at] = bucket._replace(start=first.start, moved=moving[-1].number)
        one.is_refilled |= buckets != one.document.buckets
        entries = {**one.document.entries, **found}
        one.document = replace(one.document, entries=entries, buckets=buckets)

    async def _peek(
        self,
        one: Loaded,
        bucket: Bucket,
        is_wanted: Callable[[Queued], bool] = lambda _: False,
        beside: str = "",
    ) -> None:
        """Read claims of a bucket and those next to them, or next to a rank; all stay there."""
        await self._read_names(one, bucket)
        queued = one.queued[bucket.node]
        found = [i for i, q in enumerate(queued) if is_wanted(q)]
        if beside:
            found.append(sum(q.rank < beside for q in queued) - 1)
        near = sorted({j for i in found for j in (i - 1, i, i + 1) if 0 <= j < len(queued)})
        chosen = [queued[j] for j in near]
        entries = await self._read_entries(one, bucket, chosen)
        one.peeked |= entries
        gone = {q.of for q in chosen if q.of not in entries}
        one.queued[bucket.node] = [q for q in queued if q.of not in gone]

    async def _read_entries(
        self, one: Loaded, bucket: Bucket, queued: Sequence[Queued]
    ) -> dict[ClaimId, Entry]:
        """Read claims that wait in a bucket, except those revoked or of an ended session.

        Raises Outdated if one of them was granted since the document was read.
        """
        entries: dict[ClaimId, Entry] = {}
        nodes = [f"{bucket.node}/{q.node}" for q in queued]
        requests = [Get(f"{one.path}/{node}") for node in nodes]
        answers = await self._requests.call(*requests) if requests else ()
        for q, node, answer in zip(queued, nodes, answers, strict=True):
            if not answer.error and not answer.data:
                raise Outdated
            if answer.data.startswith(b"[") and not self._is_over(q.session):
                entry = k.entry_from(decode(answer.data), Base(0, 0), Stat(0, 0, 0))
                entry.claim.rank = q.rank
                entries[q.of] = entry._replace(queued=node)
        return entries


def numbers_in(command: Steppable, own: OwnSession | None) -> list[int]:
    """Return the claim numbers of its session that a command concerns."""
    if isinstance(command, c.Claims):
        return list(own.claims) if own is not None else []
    return [getattr(command, "n", 0)]


def is_consistent(loaded: dict[Name, Loaded]) -> bool:
    """Return whether claims on several places agree in all documents, which are read separately."""
    for one in loaded.values():
        for of, entry in one.document.entries.items():
            for place in entry.claim.places if len(entry.claim.places) > 1 else ():
                other = loaded.get(place[:2])
                if other is None or other is one:
                    continue
                copy = other.document.entries.get(of)
                if copy is None or copy.claim != entry.claim:
                    return False
    return True


async def load_all(requests: Requests) -> list[Loaded]:
    """Return every resource in use, with all its claims."""
    (found,) = await requests.call(Children(requests.context.paths.resources))
    loader = Loader(requests, c.Claims(""))  # of no session: it reads all claims
    await loader.load(sorted(k.resource_of(node) for node in found.children))
    return list(loader.loaded.values())
