"""Read resources: documents, which of their claims are alive, and the buckets of long queues."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Final, NamedTuple, TypeAlias

from lockfast.core import commands as c
from lockfast.core.commands import Place
from lockfast.core.rows import Session
from lockfast.stores.derived.steps import Settle
from lockfast.stores.derived.stored import decode
from lockfast.stores.derived.view import ClaimId, Name
from lockfast.stores.zookeeper import layout as k
from lockfast.stores.zookeeper.context import Context, Requests, remember
from lockfast.stores.zookeeper.layout import Base, Bucket, Document, Entry
from lockfast.stores.zookeeper.owned import OwnSession
from lockfast.stores.zookeeper.transport import Answer, Children, Get, Request, Stat, Sync
from lockfast.stores.zookeeper.view import Loaded, Missing

PURGED_MAX: Final = 100
"""The most claims of an ended session that one step deletes from buckets."""


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
        self._paths = requests.context.paths
        self._own = requests.context.own
        self._command = command
        self.loaded: dict[Name, Loaded] = {}
        self.sessions: dict[str, Session | None] = {}
        """Sessions whose nodes were read, because they may have ended."""
        self.locations: dict[ClaimId, tuple[Place, ...]] = {}
        """Where claims of other processes were found."""
        self.nodes: dict[ClaimId, str] = {}
        """The nodes of claims that were found anywhere."""

    def assume(self, one: Loaded) -> None:
        """Take a resource to be as it was left, without reading it."""
        self.loaded[one.kind, one.name] = one

    def absent(self, name: Name) -> Loaded:
        return Loaded(*name, self._paths.resource(*name))

    async def load(self, names: Sequence[Name], *, fresh: bool = False) -> None:
        """Read resources, and which of the claims in their documents are alive."""
        if not names:
            return
        as_of = self._own.next_arrival(0)
        requests: list[Request] = [Sync(self._paths.root)] if fresh else []
        for name in names:
            path = self._paths.resource(*name)
            requests += [Get(path), Children(path)]
        answers = (await self._requests.call(*requests))[-2 * len(names) :]
        for i, name in enumerate(names):
            one = self.absent(name)
            node, below = answers[2 * i : 2 * i + 2]
            while is_replaced(node, below):
                node, below = await self._requests.call(Get(one.path), Children(one.path))
            show(self._context.label, one, node, below)
            try:
                await self._part(one)
                await self._read_buckets(one)
            except Outdated:
                await self.load([name], fresh=True)
                continue
            self.loaded[name] = one
            self._context.met(one)
            if isinstance(self._command, c.Enter):
                one.as_of, one.seen_ms = as_of, self._context.network.now_ms()
                remember(self._context.known, name, one.copy())

    async def _read_buckets(self, one: Loaded) -> None:
        """Read from the buckets of a resource what the command always needs."""
        command, buckets = self._command, one.document.buckets
        if not buckets:
            return
        if isinstance(command, c.Claims):
            while one.unread():
                await refill(self._requests, one, self._is_over, whole=True)
        elif isinstance(command, c.Inspect) or self._asks_whether_wanted(one):
            await read_names(self._requests, one, *buckets)
        elif isinstance(command, Purge):
            await self._peek_at_ended(command.session, one)
        elif isinstance(command, c.Enter):
            joined = one.bucket_for(command.head_start_ms)
            if joined is not None:
                (queued,) = await read_names(self._requests, one, joined)
                one.last = queued[-1].rank if queued else joined.start
                crowd = self._context.crowd(joined.node)
                crowd.counted, crowd.sent = len(one.below.get(joined.node, ())), 0

    def _asks_whether_wanted(self, one: Loaded) -> bool:
        """Return whether the reply says that others wait for a claim that its client retains."""
        command = self._command
        if not isinstance(command, c.Look | c.Enter | c.Convert):
            return False
        entry = one.document.entries.get((command.session, command.n))
        return entry is not None and entry.claim.block > 1

    async def _peek_at_ended(self, session: str, one: Loaded) -> None:
        """Read claims of an ended session from buckets, for the step to delete them.

        The others of very many vanish with the session's link.
        """
        buckets = list(one.document.buckets)
        for bucket, queued in zip(
            buckets, await read_names(self._requests, one, *buckets), strict=True
        ):
            mine = [q for q in queued if q.session == session][: PURGED_MAX - len(one.peeked)]
            for entry in await read_entries(self._requests, one, bucket, mine, lambda _: False):
                one.peeked[session, entry.claim.n] = entry

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
        is_purged = isinstance(self._command, Purge)
        part(one, lambda e: e.node in alive and (is_purged or not self._is_over(e.claim.session)))

    def _is_over(self, session: str) -> bool:
        """Return whether a session is known to have ended."""
        if isinstance(self._command, Purge) and session == self._command.session:
            return True
        found = self.sessions.get(session, False)
        return found is None or (isinstance(found, Session) and bool(found.ended))

    def _not_found(self, one: Loaded) -> dict[ClaimId, str]:
        """Return claims that the command concerns and the document lacks, with their nodes."""
        command = self._command
        session = getattr(command, "session", "")
        own = self._own.get(session)
        found: dict[ClaimId, str] = {}
        for n in numbers_in(command, own):
            of = (session, n)
            if n and of not in one.document.entries:
                claim = own.claims.get(n) if own is not None else None
                if claim is None:
                    if k.place_node(*of) in one.children:
                        found[of] = k.place_node(*of)
                elif claim.places[0][:2] == (one.kind, one.name):
                    found[of] = claim.node
        return found

    async def read_on(self, missing: Missing) -> None:
        if missing.resource is not None:
            await self.load([missing.resource])
        if missing.refill is not None:
            try:
                await self._read_bucket(missing, self.loaded[missing.refill])
            except Outdated:
                await self.load([missing.refill], fresh=True)
        if missing.claim is not None:
            await self._locate(missing.claim)

    async def _read_bucket(self, missing: Missing, one: Loaded) -> None:
        requests, of, command = self._requests, missing.of, self._command
        peeks = isinstance(command, c.Look | c.Leave | c.Revoke | c.Break)
        if missing.beside:
            await peek(requests, one, missing.bucket, self._is_over, beside=missing.beside)
        elif of is not None and peeks and of not in one.peeked:
            wanted = {of}
            if isinstance(command, c.Break):
                wanted.update((witness.session, witness.n) for witness in command.witnesses)
            await peek(requests, one, missing.bucket, self._is_over, wanted)
            if of not in one.peeked:
                one.missed.add(of)
        else:
            await refill(requests, one, self._is_over, missing.bucket, of)

    async def _locate(self, of: ClaimId) -> None:
        """Find a claim of another process: where it was last seen, or else anywhere."""
        places = self._context.seen.get(of, ())
        if places:
            self.locations[of] = places
            await self.load([places[0][:2]])
            if of in self.loaded[places[0][:2]].document.entries:
                return
        self.locations[of] = ()
        # Record all that are found: a command may be about many claims.
        for one in await load_all(self._requests):
            for key, entry in one.document.entries.items():
                self.locations[key] = entry.claim.places
                self.nodes[key] = entry.node


def numbers_in(command: Steppable, own: OwnSession | None) -> list[int]:
    """Return the claim numbers of its session that a command concerns."""
    if isinstance(command, c.Claims):
        return list(own.claims) if own is not None else []
    return [getattr(command, "n", 0)]


def show(label: str, one: Loaded, node: Answer, below: Answer) -> None:
    """Let a resource be as reads of its document and of the names below it show it."""
    if node.stat is not None and not below.error:
        one.exists, one.version = True, node.stat.version
        one.children = frozenset(below.children)
        # Without data it was created but not written yet; no step leaves a node like this.
        if node.data:
            one.document = k.document_from(label, decode(node.data), node.stat)
        # The server deletes containers whose last child is gone, whether they are listed or not.
        buckets = one.document.buckets
        one.document.buckets = [bucket for bucket in buckets if bucket.node in one.children]


def part(one: Loaded, is_alive: Callable[[Entry], bool]) -> None:
    """Separate live entries of a document from dead ones."""
    entries = one.document.entries
    for of, entry in list(entries.items()):
        if not is_alive(entry):
            one.dead.append(entries.pop(of))


def keep(context: Context, name: Name, version: int, document: Document) -> None:
    """Keep a document that another process has written and sent, for our next step.

    Its entries count as alive. That suffices: a multi requires the node of each claim it grants.
    """
    known = context.known.get(name)
    if known is not None and known.version >= version:
        return
    nodes = [entry.node.partition("/")[0] for entry in document.entries.values()]
    nodes += [bucket.node for bucket in document.buckets]
    children = frozenset([*nodes, document.marker] if document.marker else nodes)
    one = Loaded(*name, context.paths.resource(*name), True, version, children, document)
    one.seen_ms = context.network.now_ms()
    context.met(one)
    remember(context.known, name, one)


def is_replaced(node: Answer, below: Answer) -> bool:
    """Return whether a resource was deleted and created again between two reads of it.

    A node below the new resource would not prove that the document that was read is current.
    """
    return node.stat is not None and below.stat is not None and node.stat.czxid != below.stat.czxid


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


async def read_names(requests: Requests, one: Loaded, *buckets: Bucket) -> list[list[k.Queued]]:
    """Return the claims that wait in each of these buckets and are not in the document.

    The names are no older than this request: an outdated list would lack claims that have joined.
    """
    paths = [f"{one.path}/{bucket.node}" for bucket in buckets]
    _, *answers = await requests.call(Sync(one.path), *map(Children, paths))
    found: list[list[k.Queued]] = []
    for bucket, answer in zip(buckets, answers, strict=True):
        queued = [q for q in k.queued_in(bucket, answer.children) if q.number > bucket.moved]
        if not answer.error:
            one.below[bucket.node] = frozenset(answer.children)
        one.counts[bucket.node] = len(queued)
        found.append(queued)
    return found


async def refill(
    requests: Requests,
    one: Loaded,
    is_over: Callable[[str], bool],
    node: str = "",
    of: ClaimId | None = None,
    *,
    whole: bool = False,
) -> None:
    """Move the first claims of a bucket into the document: of the named one, or of the next.

    Move as many as the window holds, or up to the claim `of`, or all. Claims that join the bucket
    after this have higher numbers.
    """
    buckets = one.document.buckets
    lowest = min(one.unread(), key=lambda bucket: bucket.start, default=None)
    bucket = next((bucket for bucket in buckets if bucket.node == node), lowest)
    assert bucket is not None, "there is a bucket to read"
    (queued,) = await read_names(requests, one, bucket)
    claims = [(q.session, q.n) for q in queued]
    if of is not None and of not in claims:
        one.missed.add(of)
    count = max(requests.context.sizes.window_max, claims.index(of) + 1 if of in claims else 0)
    moving, staying = (queued, []) if whole else (queued[:count], queued[count:])
    for entry in await read_entries(requests, one, bucket, moving, is_over):
        one.document.entries.setdefault((entry.claim.session, entry.claim.n), entry)
    one.peeked = {key: e for key, e in one.peeked.items() if key not in one.document.entries}
    one.counts[bucket.node] = len(staying)
    at = buckets.index(bucket)
    if not staying and (bucket.is_sealed or bucket.node not in one.below):
        del buckets[at]
        one.is_refilled = True
    elif moving:
        first = staying[0] if staying else moving[-1]
        buckets[at] = bucket._replace(start=first.start, moved=moving[-1].number)
        one.is_refilled = True


async def peek(
    requests: Requests,
    one: Loaded,
    node: str,
    is_over: Callable[[str], bool],
    wanted: Collection[ClaimId] = (),
    beside: str = "",
) -> None:
    """Read claims of a bucket with those next to them, or those next to a rank.

    They stay in the bucket.
    """
    bucket = next(bucket for bucket in one.document.buckets if bucket.node == node)
    (queued,) = await read_names(requests, one, bucket)
    if beside:
        at = sum(q.rank < beside for q in queued)
        near = queued[max(0, at - 1) : at + 1]
    else:
        found = [i for i, q in enumerate(queued) if (q.session, q.n) in wanted]
        chosen = sorted({j for i in found for j in (i - 1, i, i + 1) if 0 <= j < len(queued)})
        near = [queued[j] for j in chosen]
    for entry in await read_entries(requests, one, bucket, near, is_over):
        of = (entry.claim.session, entry.claim.n)
        if of not in one.document.entries:
            one.peeked[of] = entry


async def read_entries(
    requests: Requests,
    one: Loaded,
    bucket: Bucket,
    queued: Sequence[k.Queued],
    is_over: Callable[[str], bool],
) -> list[Entry]:
    """Read claims that wait in a bucket, without those that were revoked or whose session ended.

    Raises Outdated if one of them was granted since the document was read.
    """
    entries: list[Entry] = []
    nodes = [f"{bucket.node}/{q.node}" for q in queued]
    answers = await requests.call(*(Get(f"{one.path}/{node}") for node in nodes)) if nodes else ()
    for q, node, answer in zip(queued, nodes, answers, strict=True):
        if not answer.error and not answer.data:
            raise Outdated
        if not answer.error and answer.data.startswith(b"["):
            entry = k.entry_from(decode(answer.data), Base(0, 0), Stat(0, 0, 0))
            entry.claim.rank = q.rank
            if not is_over(entry.claim.session):
                entries.append(entry._replace(queued=node))
    return entries


async def load_all(requests: Requests) -> list[Loaded]:
    """Return every resource in use, with all its claims."""
    (found,) = await requests.call(Children(requests.context.paths.resources))
    loader = Loader(requests, c.Claims(""))  # of no session: it reads all claims
    await loader.load(sorted(k.resource_of(node) for node in found.children))
    return list(loader.loaded.values())
