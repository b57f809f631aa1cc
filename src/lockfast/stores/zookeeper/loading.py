"""Read resources: documents, which of their claims are alive, and the buckets of long queues."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeAlias

from lockfast.core import commands as c
from lockfast.core.commands import Place
from lockfast.core.rows import Session
from lockfast.stores.derived.steps import Settle
from lockfast.stores.derived.stored import decode
from lockfast.stores.derived.view import ClaimId, Name
from lockfast.stores.zookeeper import layout as k
from lockfast.stores.zookeeper.context import Context, Requests, remember
from lockfast.stores.zookeeper.layout import Base, Entry
from lockfast.stores.zookeeper.owned import OwnSession
from lockfast.stores.zookeeper.transport import Answer, Children, Get, Request, Set, Sync
from lockfast.stores.zookeeper.view import Loaded, Missing


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
        self._seals = isinstance(command, c.Enter | c.Leave | Settle | Purge)
        """Whether a bucket is sealed before it is read, because the document will be written."""

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
            if isinstance(self._command, c.Enter) and one.document.buckets and not fresh:
                # An outdated read would not show who has joined: this claim could overtake them.
                await self.load(names, fresh=True)
                return
            try:
                await self._part(one)
                await self._read_buckets(one)
            except Outdated:
                await self.load([name], fresh=True)
                continue
            self.loaded[name] = one
            self._context.met(one)
            if isinstance(self._command, c.Enter):
                one.as_of = as_of
                remember(self._context.known, name, one.copy())

    async def _read_buckets(self, one: Loaded) -> None:
        """Read from the buckets of a resource what the command always needs."""
        command, buckets = self._command, one.document.buckets
        if not buckets:
            return
        if isinstance(command, c.Claims):
            while buckets:
                await refill(self._requests, one, self._is_over, seals=False)
        elif isinstance(command, c.Inspect):
            answers = await self._requests.call(
                *(Children(f"{one.path}/{bucket.node}") for bucket in buckets)
            )
            for bucket, answer in zip(buckets, answers, strict=True):
                one.counts[bucket.name] = sum(node >= bucket.start for node in answer.children)
        elif isinstance(command, c.Enter):
            (answer,) = await self._requests.call(Children(f"{one.path}/{buckets[-1].node}"))
            one.last = max([buckets[-1].start, *answer.children])
            one.last_count = len(answer.children)

    async def _part(self, one: Loaded) -> None:
        """Separate live entries from dead ones, and find revoked claims."""
        entries = one.document.entries
        buckets = sorted({entry.bucket for entry in entries.values() if entry.bucket})
        alive = set(one.children)
        requests: list[Request] = [Children(f"{one.path}/q{bucket}") for bucket in buckets]
        own = self._not_found(one)
        requests += [Get(f"{one.path}/{node}") for node in own.values()]
        answers = await self._requests.call(*requests) if requests else ()
        for bucket, answer in zip(buckets, answers, strict=False):
            alive |= {f"q{bucket}/{node}" for node in answer.children}
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
        if missing.seal is not None:
            self._seals = True
            await self.load([missing.seal])
        if missing.refill is not None:
            try:
                await self._read_bucket(missing, self.loaded[missing.refill])
            except Outdated:
                await self.load([missing.refill], fresh=True)
        if missing.claim is not None:
            await self._locate(missing.claim)

    async def _read_bucket(self, missing: Missing, one: Loaded) -> None:
        requests, of = self._requests, missing.of
        peeks = isinstance(self._command, c.Look | c.Leave)
        if of is not None and peeks and of not in one.peeked:
            await peek(requests, one, missing.bucket, of, self._is_over)
        else:
            await refill(requests, one, self._is_over, missing.bucket, of, seals=self._seals)

    async def _locate(self, of: ClaimId) -> None:
        """Find a claim of another process: where it was last seen, or else anywhere."""
        places = self._context.seen.get(of, ())
        if places:
            self.locations[of] = places
            await self.load([places[0][:2]])
            if of in self.loaded[places[0][:2]].document.entries:
                return
        self.locations[of] = ()
        for one in await load_all(self._requests):
            if of in one.document.entries:
                self.locations[of] = one.document.entries[of].claim.places
                self.nodes[of] = one.document.entries[of].node


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
        one.document = k.document_from(label, node.data, node.stat)


def part(one: Loaded, is_alive: Callable[[Entry], bool]) -> None:
    """Separate live entries of a document from dead ones."""
    entries = one.document.entries
    for of, entry in list(entries.items()):
        if not is_alive(entry):
            one.dead.append(entries.pop(of))


def keep_for_release(context: Context, name: Name, node: Answer, below: Answer) -> None:
    """Keep what was read of a resource, for the release of a claim that holds it.

    Entries whose nodes are in buckets count as alive, because these were not read. That suffices:
    the multi requires the node of each claim that it grants.
    """
    if is_replaced(node, below):
        return
    one = Loaded(*name, context.paths.resource(*name))
    show(context.label, one, node, below)
    part(one, lambda entry: bool(entry.bucket) or entry.node in one.children)
    context.met(one)
    known = context.known.get(name)
    if known is None or known.version < one.version:
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


async def refill(
    requests: Requests,
    one: Loaded,
    is_over: Callable[[str], bool],
    name: str = "",
    of: ClaimId | None = None,
    *,
    seals: bool,
) -> None:
    """Read the claims of a bucket into the document: of the named one, or of the next.

    With `seals`, first close the bucket to further claims, and read as many claims as the window
    holds, or up to the claim `of`. Otherwise, read them all.
    """
    buckets = one.document.buckets
    bucket = next((b for b in buckets if b.name == name), min(buckets, key=lambda b: b.start))
    last, path = buckets[-1], f"{one.path}/{bucket.node}"
    is_sealed = bucket.is_sealed or seals
    # Either way, what is read is not older than the seal.
    first: Request = Set(path, b"") if seals and not bucket.is_sealed else Sync(path)
    _, below = await requests.call(first, Children(path))
    nodes = sorted(node for node in below.children if node >= bucket.start)
    claims = [k.claim_of(node) for node in nodes]
    count = len(nodes)
    if of is not None and of not in claims:
        one.missed.add(of)
    if seals:
        count = max(requests.context.sizes.window_max, claims.index(of) + 1 if of in claims else 0)
    for found in await read_entries(requests, path, nodes[:count], is_over):
        one.document.entries.setdefault((found.claim.session, found.claim.n), found)
    stays = set(claims[count:])
    one.peeked = {
        key: e for key, e in one.peeked.items() if e.bucket != bucket.name or key in stays
    }
    at = buckets.index(bucket)
    rest = nodes[count : count + 1]
    buckets[at : at + 1] = [bucket._replace(start=node, is_sealed=is_sealed) for node in rest]
    one.is_refilled = True
    one.open_reads |= not is_sealed
    if seals and bucket == last:
        one.next_start = nodes[-1] if nodes else ""
    if is_sealed and not below.children and not below.error:
        one.emptied.append(bucket.node)


async def peek(
    requests: Requests, one: Loaded, name: str, of: ClaimId, is_over: Callable[[str], bool]
) -> None:
    """Read a claim from its bucket, with the claims next to it, and leave them there."""
    bucket = next(b for b in one.document.buckets if b.name == name)
    path = f"{one.path}/{bucket.node}"
    (below,) = await requests.call(Children(path))
    nodes = sorted(node for node in below.children if node >= bucket.start)
    at = next((i for i, node in enumerate(nodes) if k.claim_of(node) == of), -1)
    near = nodes[max(0, at - 1) : at + 2] if at >= 0 else []
    found = {
        (entry.claim.session, entry.claim.n): entry
        for entry in await read_entries(requests, path, near, is_over)
    }
    if of not in found:
        one.missed.add(of)
    one.peeked.update({key: e for key, e in found.items() if key not in one.document.entries})


async def read_entries(
    requests: Requests, path: str, nodes: Sequence[str], is_over: Callable[[str], bool]
) -> list[Entry]:
    """Read claims that wait in a bucket, without those that were revoked or whose session ended.

    Raises Outdated if one of them was granted since the document was read.
    """
    entries: list[Entry] = []
    for answer in await requests.call(*(Get(f"{path}/{node}") for node in nodes)) if nodes else ():
        if not answer.error and not answer.data:
            raise Outdated
        if not answer.error and answer.data.startswith(b"["):
            entry = k.entry_from(decode(answer.data), Base(0, 0), 0)
            if not is_over(entry.claim.session):
                entries.append(entry)
    return entries


async def load_all(requests: Requests) -> list[Loaded]:
    """Return every resource in use, with all its claims."""
    (found,) = await requests.call(Children(requests.context.paths.resources))
    loader = Loader(requests, c.Claims(""))  # of no session: it reads all claims and seals nothing
    await loader.load(sorted(k.resource_of(node) for node in found.children))
    return list(loader.loaded.values())
