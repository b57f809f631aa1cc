"""The nodes of a namespace and their contents.

    <root>/e                      base of tokens and schema (`Base`); persistent
    <root>/s/<session>            a session (`Record`); ephemeral. Its data version is 0 while
                                  the session lives; ending the session raises it
    <root>/p/<session>            its last keep-alive; ephemeral
    <root>/k/<ms>.<session>       tombstone: why a session was ended, kept ten minutes; persistent,
                                  deleted when a session is opened afterwards
    <root>/b/<session>            its bell: set to notify it about its claims; ephemeral
    <root>/n/<kind>:<name>        a resource in use: the document of its queue; a container
    <root>/n/…/<session>.<n>      a claim's place there; ephemeral. Set by the client that grants or
                                  revokes the claim; a revocation is in its content
    <root>/n/…/!<unique>          the resource is closed (as its document says); persistent
    <root>/n/…/q<k>               a bucket, one part of a long queue; a container. Its data version
                                  is 0 while claims can join it
    <root>/n/…/q<k>/<rank>.<session>.<n>   a claim that waits there (its entry); ephemeral

A document has everything about a resource except which claims are alive: an entry counts only
while its node exists. Tokens allocated by the write that produced the document are stored relative
to that write's zxid, which a reader of the document sees as its `mzxid`, and the end of a closing
relative to the leader's clock at that write, `mtime`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple
from urllib.parse import quote, unquote

from lockfast.core.commands import HOLDING, REVOKED, WAITING, WAKE_GRANTED, Wake
from lockfast.core.rows import Claim
from lockfast.errors import StoreError, StoreMisconfiguredError
from lockfast.stores.derived.stored import (
    RELATIVE,
    TOKEN_MAX,
    UnreadableError,
    claim_from,
    decode,
    encode,
    packed_entry,
    packed_grant,
)
from lockfast.stores.zookeeper.transport import Stat

SCHEMA: Final = 1
STRIDE: Final = 32
"""Tokens per write."""
STEP: Final = 1 << 20
"""The initial number of writes per ZooKeeper epoch; doubled before it is reached."""
SLACK: Final = 1 << 18
LOW: Final = (1 << 32) - 1
JOINED: Final = "joined"
"""What a bell says to a sole holder when the first claim has joined its queue."""


def data_of(values: Any) -> bytes:
    """Encode values as the content of a node."""
    return encode(values).encode()


# ── paths ────────────────────────────────────────────────────────────────────────────


class Paths:
    """The nodes of one namespace."""

    def __init__(self, root: str) -> None:
        self.root = root
        self.base = f"{root}/e"
        self.sessions = f"{root}/s"
        self.alive = f"{root}/p"
        self.bells = f"{root}/b"
        self.tombs = f"{root}/k"
        self.resources = f"{root}/n"
        self.directories = (self.sessions, self.alive, self.bells, self.tombs, self.resources)

    def session(self, session: str) -> str:
        return f"{self.sessions}/{_escaped(session)}"

    def alive_of(self, session: str) -> str:
        return f"{self.alive}/{_escaped(session)}"

    def bell(self, session: str) -> str:
        return f"{self.bells}/{_escaped(session)}"

    def tomb(self, session: str, now_ms: int) -> str:
        return f"{self.tombs}/{now_ms}.{_escaped(session)}"

    def resource(self, kind: str, name: str) -> str:
        return f"{self.resources}/{kind}:{_escaped(name)}"


def _escaped(text: str) -> str:
    return quote(text, safe=" !$&'()*+,;=@")


def resource_of(node: str) -> tuple[str, str]:
    """Return the kind and name of the resource at this node."""
    kind, _, name = node.partition(":")
    return kind, unquote(name)


def session_of(node: str) -> str:
    return unquote(node)


def tomb_of(node: str) -> tuple[int, str]:
    """Return when a session was ended, and which one."""
    at_ms, _, session = node.partition(".")
    return int(at_ms) if at_ms.isdigit() else 0, unquote(session)


def rank_in_bucket(rank: str, session: str, n: int) -> str:
    """Return the rank of a claim that waits in a bucket; it is also the name of its node.

    Claims that join a bucket do not see each other and may draw the same rank, so it is extended
    by what is unique.
    """
    return f"{rank}.{place_node(session, n)}"


def claim_of(rank: str) -> tuple[str, int]:
    """Return the claim with this rank in a bucket."""
    session, _, n = rank.partition(".")[2].rpartition(".")
    return unquote(session), int(n)


def place_node(session: str, n: int) -> str:
    return f"{_escaped(session)}.{n}"


# ── tokens ───────────────────────────────────────────────────────────────────────────


class Base(NamedTuple):
    """How tokens are derived from zxids; every grant checks that this is unchanged.

    A zxid is an epoch (elections so far) and a counter of writes, 32 bits each. Taken as one
    number, it would jump by 2^32 with each election, far ahead of the wall clock that must overtake
    it after the ensemble has lost its data. An epoch is therefore counted as `step` writes. Before
    a counter reaches that, `step` is doubled and the epochs so far are added to `value`.
    """

    value: int
    epoch: int
    """The ZooKeeper epoch from which `step` applies."""
    step: int = STEP
    schema: int = SCHEMA

    def native(self, zxid: int) -> int:
        return STRIDE * (((zxid >> 32) - self.epoch) * self.step + (zxid & LOW))

    def token(self, zxid: int, index: int) -> int:
        found = self.value + self.native(zxid) + index
        if not 0 < found <= TOKEN_MAX:
            raise StoreError("ZooKeeper", f"token {found} is out of range")
        return found

    def is_outgrown(self, zxid: int) -> bool:
        """Return True if the counter nears `step`: tokens of the next epoch would not be higher."""
        return (zxid & LOW) + SLACK > self.step

    def raised(self, zxid: int, wall_us: int) -> Base:
        """Return the base from this zxid on: no token is below the wall clock or the last token."""
        step = self.step
        while (zxid & LOW) + SLACK > step:
            step *= 2
        value = self.value
        if step != self.step:
            value += STRIDE * ((zxid >> 32) - self.epoch) * self.step
        base = Base(value, (zxid >> 32) if step != self.step else self.epoch, step)
        return base._replace(value=max(value, wall_us - base.native(zxid)))


def base_from(label: str, values: Any) -> Base:
    """Return a stored base of tokens. Raises StoreMisconfiguredError for an unknown schema."""
    if isinstance(values, list) and len(values) == 4 and all(isinstance(v, int) for v in values):
        if values[3] == SCHEMA and values[2] > 0:
            return Base(*values)
        raise StoreMisconfiguredError(
            label,
            f"the namespace has schema {values[3]}, this version uses {SCHEMA}",
            "use another namespace, or delete its nodes when no client uses it",
        )
    raise UnreadableError(f"the base of tokens is {str(values)[:60]!r}")


# ── sessions ─────────────────────────────────────────────────────────────────────────


class Owner(NamedTuple):
    """What each claim stores of its session."""

    ttl_ms: int
    owner: str
    process: str
    inbox: str


class Record(NamedTuple):
    """A session, as stored."""

    ttl_ms: int
    owner: str
    process: str
    inbox: str
    metadata: str
    opened_ms: int
    ended: str = ""
    by: str = ""
    what: str = ""
    """The event that is logged for its claims."""


def record_from(data: bytes) -> Record:
    try:
        record = Record(*decode(data))
        int(record.ttl_ms), int(record.opened_ms)
    except (TypeError, ValueError) as error:
        raise UnreadableError(f"a session is not readable ({error})") from None
    return record


def alive_from(data: bytes) -> tuple[int, int]:
    """Return how often a session was renewed, and when it was last renewed."""
    try:
        renewals, renewed_ms = map(int, decode(data))
    except (TypeError, ValueError) as error:
        raise UnreadableError(f"a keep-alive is not readable ({error})") from None
    return renewals, renewed_ms


# ── claims and documents ─────────────────────────────────────────────────────────────


class Entry(NamedTuple):
    """A claim, as stored in a document."""

    claim: Claim
    owner: Owner
    bucket: str = ""
    """The bucket of a long queue that contains its node; "" if it is directly below the resource.
    """

    @property
    def node(self) -> str:
        if self.bucket:
            return f"q{self.bucket}/{self.claim.rank}"
        return place_node(self.claim.session, self.claim.n)


class Bucket(NamedTuple):
    """One part of a long queue, as its document lists it."""

    name: str
    """Never reused, so that a node in it proves that the resource is still the same."""
    start: str
    """The claims in it that are not in the document have this rank or a higher one."""
    is_sealed: bool = False
    """No claim can join it, because its first claims were moved into the document."""

    @property
    def node(self) -> str:
        return f"q{self.name}"


class Sizes(NamedTuple):
    """How a long queue is divided."""

    window_max: int = 8
    """Waiting claims in a document; further claims wait in buckets."""
    bucket_max: int = 64
    """Claims in a bucket before the next one is opened; concurrent claims can exceed it."""
    joins_per_read: int = 16
    """Claims that a client sends to a bucket before it reads again how many are there."""


@dataclass
class Document:
    """The content of a resource's node."""

    entries: dict[tuple[str, int], Entry] = field(default_factory=dict)
    limit: int = 0
    closed_ms: int = 0
    marker: str = ""
    """The name of the node that keeps a closed resource from being deleted."""
    buckets: list[Bucket] = field(default_factory=list)
    """Where claims wait behind those in the document, in order."""


def packed_claim(entry: Entry) -> list[Any]:
    claim, owner, bucket = entry
    token: Any = claim.token
    if claim.token >= RELATIVE:
        token = [claim.token - RELATIVE]
    key = [claim.session, claim.n, int(claim.state == HOLDING), claim.rank]
    return [*key, *packed_entry(claim), token, *packed_grant(claim), list(owner), bucket]


def entry_from(values: Any, base: Base, zxid: int) -> Entry:
    try:
        session, n, holds, rank, *entry, token = list(values)[:9]
        *grant, owner, bucket = list(values)[9:]
        number = base.token(zxid, int(token[0])) if isinstance(token, list) else int(token)
        state = HOLDING if holds else WAITING
        claim = claim_from(str(session), int(n), state, str(rank), entry, number, grant)
        of = Owner(int(owner[0]), str(owner[1]), str(owner[2]), str(owner[3]))
        return Entry(claim, of, str(bucket))
    except (TypeError, ValueError, IndexError) as error:
        raise UnreadableError(f"a claim is not readable ({error})") from None


def packed(document: Document, base: Base, closed_for_ms: int = 0) -> bytes:
    """Encode a document; `closed_for_ms` is for how long this write closes the resource."""
    entries = [packed_claim(entry) for entry in document.entries.values()]
    buckets = [[one.name, one.start, int(one.is_sealed)] for one in document.buckets]
    closed = [closed_for_ms] if closed_for_ms else document.closed_ms
    rest = [document.limit, closed, document.marker, buckets]
    return data_of([list(base), rest, entries])


def document_from(label: str, data: bytes, stat: Stat) -> Document:
    if not data:
        return Document()  # created but not written yet; no step leaves a node like this
    try:
        base_values, (limit, closed, marker, buckets), entries = decode(data)
        closed_ms = stat.mtime_ms + closed[0] if isinstance(closed, list) else closed
        base = base_from(label, base_values)
        document = Document(
            {}, int(limit), int(closed_ms), str(marker),
            [Bucket(str(name), str(start), bool(sealed)) for name, start, sealed in buckets],
        )  # fmt: skip
    except (TypeError, ValueError, IndexError) as error:
        raise UnreadableError(f"a resource is not readable ({error})") from None
    for values in entries:
        entry = entry_from(values, base, stat.mzxid)
        document.entries[entry.claim.session, entry.claim.n] = entry
    return document


def packed_rings(rings: list[Wake], base: Base) -> bytes:
    """Encode the content of a bell: the claims it rings for, the reasons, and tokens granted."""
    told = [[wake.n, wake.what, max(0, wake.token - RELATIVE)] for wake in rings]
    return data_of([list(base), told])


def rings_from(label: str, data: bytes, zxid: int) -> list[tuple[int, str, int]]:
    """Decode a bell: for each claim its number, the reason, and its token if granted, else 0."""
    try:
        base_values, told = decode(data)
        base = base_from(label, base_values)
        return [
            (int(n), str(what), base.token(zxid, int(i)) if what == WAKE_GRANTED else 0)
            for n, what, i in told
        ]
    except TypeError as error:
        raise UnreadableError(f"a bell is not readable ({error})") from None


def packed_taken(entry: Entry) -> bytes:
    """Encode the content of the node of a revoked claim."""
    claim = entry.claim
    return data_of({"reason": claim.reason, "by": claim.by, "claim": packed_claim(entry)})


def taken_from(data: bytes) -> Claim | None:
    """Decode the node of a revoked claim; return None if the claim was not revoked."""
    if not data.startswith(b"{"):
        return None
    try:
        said = decode(data)
        claim = entry_from(said["claim"], Base(0, 0), 0).claim
        claim.reason, claim.by = str(said["reason"]), str(said["by"])
    except (TypeError, KeyError) as error:
        raise UnreadableError(f"a claim that was taken away is not readable ({error})") from None
    claim.state, claim.places = REVOKED, ()
    return claim
