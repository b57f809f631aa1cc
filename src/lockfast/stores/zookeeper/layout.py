"""The nodes of a namespace and their contents.

    <root>/e                      base of tokens, schema, state of the log (`Base`); persistent
    <root>/s/<session>            a session (`Record`); ephemeral. Its data version is 0 while
                                  the session lives; ending the session raises it
    <root>/p/<session>            its last keep-alive; ephemeral
    <root>/k/<ms>.<session>       tombstone: why a session was ended, kept ten minutes; persistent,
                                  deleted when a session is opened afterwards
    <root>/b/<session>            its bell: set to notify it about its claims; ephemeral
    <root>/l/<number>             a log of events, set with every entry; persistent
    <root>/l/<number>/e<number>   the events of one write (`entries.py`); persistent
    <root>/n/<kind>:<name>        a resource in use: the document of its queue; a container
    <root>/n/…/<session>.<n>      a claim's place there; ephemeral. Set by the client that grants or
                                  revokes the claim; a revocation is in its content
    <root>/n/…/!<unique>          the resource is closed (as its document says); persistent
    <root>/n/…/q<k>               a bucket, one part of a queue; a container. Its data version is 0
                                  while claims can join it
    <root>/n/…/q<k>/<rank>.<session>.<n>.<number>   a claim that waits there (its entry); ephemeral

A document has everything about a resource except which claims are alive: an entry counts only
while its node exists. Tokens allocated by the write that produced the document are stored relative
to that write's zxid, which a reader of the document sees as its `mzxid`. The end of a closing, and
the time of a grant, are relative to the leader's clock at the write, `mtime`: the estimate that the
granting client had of this clock lags behind it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final, NamedTuple, TypeAlias
from urllib.parse import quote, unquote

from lockfast.core.commands import HOLDING, REVOKED, WAITING, WAKE_GRANTED, Wake
from lockfast.core.rows import Claim, Session, arrival_of, entered_of, rank_of
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

SCHEMA: Final = 3
STRIDE: Final = 32
"""Tokens per write."""
STEP: Final = 1 << 20
"""The initial number of writes per ZooKeeper epoch; doubled before it is reached."""
SLACK: Final = 1 << 18
LOW: Final = (1 << 32) - 1
RANK: Final = 32
"""The length of a rank (`core.rows.rank_of`), to which a bucket appends a number."""
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
        self.logs = f"{root}/l"
        self.directories = (
            self.sessions, self.alive, self.bells, self.tombs, self.resources, self.logs,
        )  # fmt: skip

    def session(self, session: str) -> str:
        return f"{self.sessions}/{_escaped(session)}"

    def alive_of(self, session: str) -> str:
        return f"{self.alive}/{_escaped(session)}"

    def bell(self, session: str) -> str:
        return f"{self.bells}/{_escaped(session)}"

    def tomb(self, session: str, now_ms: int) -> str:
        return f"{self.tombs}/{now_ms}.{_escaped(session)}"

    def log(self, number: int) -> str:
        return f"{self.logs}/{number}"

    def resource(self, kind: str, name: str) -> str:
        return f"{self.resources}/{kind}:{_escaped(name)}"


@lru_cache(maxsize=4096)
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
    return int(at_ms) if at_ms.isdecimal() else 0, unquote(session)


def place_node(session: str, n: int) -> str:
    return f"{_escaped(session)}.{n}"


class Queued(NamedTuple):
    """A claim that waits in a bucket, as the name of its node shows it."""

    number: int
    """The sequence number, which the server gave to the node."""
    node: str
    session: str
    n: int
    rank: str
    """Its own rank, but not lower than those of the claims that joined the bucket before."""

    @property
    def of(self) -> tuple[str, int]:
        return self.session, self.n

    @property
    def start(self) -> str:
        """The lowest rank of this claim and of those that joined later."""
        return self.rank.rpartition(".")[0]


def bucket_prefix(claim: Claim) -> str:
    """Return the name of a claim's node in a bucket, without the sequence number."""
    return f"{claim.rank}.{place_node(claim.session, claim.n)}."


def queued_in(bucket: Bucket, nodes: Iterable[str]) -> list[Queued]:
    """Return the claims with these nodes in a bucket in the order in which they joined it."""
    parsed: list[Queued] = []
    for node in nodes:
        if node.count(".") < 2:
            continue  # not a claim
        rank, *session, n, number = node.split(".")
        if len(rank) == RANK and n.isdecimal() and number.isdecimal():
            parsed.append(Queued(int(number), node, unquote(".".join(session)), int(n), rank))
    found: list[Queued] = []
    highest = bucket.start[:RANK]
    for one in sorted(parsed):
        highest = max(highest, one.rank)
        # The number decides between claims of one rank; no two claims have the same rank.
        found.append(one._replace(rank=f"{highest}.{one.number:010}.{bucket.node}"))
    return found


def following(rank: str) -> str:
    """Return the first rank behind all those that a bucket derives from this one."""
    return rank_of(entered_of(rank), arrival_of(rank) + 1)


# ── tokens ───────────────────────────────────────────────────────────────────────────


class Base(NamedTuple):
    """How tokens are derived from zxids, and whether events are logged.

    Every write that grants a claim or has events to log checks that this is unchanged.

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
    log_until_ms: int = 0
    """Events are logged until this instant of the leader's clock, because they have a reader."""
    log_number: int = 0
    """Which log is written; 0 if there was none yet."""

    @property
    def of_tokens(self) -> list[int]:
        """What a stored token needs to be derived from a zxid."""
        return list(self[:4])

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
        epoch = (zxid >> 32) if step != self.step else self.epoch
        base = self._replace(value=value, epoch=epoch, step=step)
        return base._replace(value=max(value, wall_us - base.native(zxid)))


def base_from(label: str, values: Any) -> Base:
    """Return a stored base of tokens. Raises StoreMisconfiguredError for an unknown schema."""
    is_list = isinstance(values, list) and 4 <= len(values) <= len(Base._fields)
    if is_list and all(isinstance(value, int) for value in values):
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

    def row(self, session: str, deadline_ms: int, renewals: int = 0) -> Session:
        return Session(
            session, self.ttl_ms, self.owner, self.metadata, self.inbox, self.process,
            self.opened_ms, deadline_ms, renewals, ended=self.ended, by=self.by,
        )  # fmt: skip


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
    queued: str = ""
    """Bucket and name of its node, if the claim joined a bucket; "" if the node is directly below
    the resource."""

    @property
    def node(self) -> str:
        """The path of its node, below the resource."""
        return self.queued or place_node(self.claim.session, self.claim.n)

    @property
    def bucket(self) -> str:
        """The node of the bucket that contains its node, or ""."""
        return self.queued.partition("/")[0]


class Bucket(NamedTuple):
    """One part of a queue, as its document lists it."""

    node: str
    """Never reused, so that a node in it proves that the resource is still the same."""
    start: str
    """The claims in it that are not in the document have this rank or a higher one."""
    head_start_ms: int
    """That of all claims in it, so that they join it in the order of their ranks."""
    moved: int = -1
    """The claims up to this sequence number were moved into the document."""
    is_sealed: bool = False
    """No claim can join it, because it was full."""


class Sizes(NamedTuple):
    """How a queue is divided."""

    window_max: int = 8
    """Claims that are moved from a bucket into the document at once."""
    bucket_max: int = 64
    """Claims in a bucket before the next one is opened; concurrent claims can exceed it."""
    joins_per_read: int = 16
    """Claims that a client sends to a bucket before it reads again how many are there."""
    direct_max: int = 1
    """Waiting claims in a document before the first bucket is opened."""


@dataclass
class Document:
    """The content of a resource's node."""

    entries: dict[tuple[str, int], Entry] = field(default_factory=dict)
    limit: int = 0
    closed_ms: int = 0
    marker: str = ""
    """The name of the node that keeps a closed resource from being deleted."""
    buckets: list[Bucket] = field(default_factory=list)
    """Where further claims wait, in the order in which they were opened."""


def packed_claim(entry: Entry, now_ms: int = -1) -> list[Any]:
    """Encode a claim; `now_ms` is the instant of the step, if its write dates grants."""
    claim, owner, queued = entry
    token: Any = claim.token
    if claim.token >= RELATIVE:
        token = [claim.token - RELATIVE]
    grant = packed_grant(claim)
    if is_granted_at(claim, now_ms):
        grant[:2] = [0], [claim.max_hold_ms]
    key = [claim.session, claim.n, int(claim.state == HOLDING), claim.rank, *packed_entry(claim)]
    return [*key, token, *grant, list(owner), queued]


def is_granted_at(claim: Claim, now_ms: int) -> bool:
    """Return whether a step at this instant grants a claim, so that its write dates the grant."""
    return claim.token >= RELATIVE and claim.granted_ms == now_ms


def granted_times(max_hold_ms: int, stat: Stat) -> tuple[int, int]:
    """Return when a write granted a claim, and when its max_hold has elapsed (0: never).

    The write is dated in whole milliseconds, hence the one that is added.
    """
    return stat.mtime_ms, stat.mtime_ms + max_hold_ms + 1 if max_hold_ms else 0


def entry_from(values: Any, base: Base, stat: Stat) -> Entry:
    """Decode a claim; `stat` is that of a node which the write that stored it has set."""
    try:
        session, n, holds, rank, *entry, token = list(values)[:9]
        *grant, owner, queued = list(values)[9:]
        if isinstance(grant[1], list):
            grant[:2] = granted_times(int(grant[1][0]), stat)
        number = base.token(stat.mzxid, int(token[0])) if isinstance(token, list) else int(token)
        state = HOLDING if holds else WAITING
        claim = claim_from(str(session), int(n), state, str(rank), entry, number, grant)
        of = Owner(int(owner[0]), str(owner[1]), str(owner[2]), str(owner[3]))
        return Entry(claim, of, str(queued))
    except (TypeError, ValueError, IndexError) as error:
        raise UnreadableError(f"a claim is not readable ({error})") from None


def packed(document: Document, base: Base, now_ms: int, closed_for_ms: int) -> list[Any]:
    """Encode a document.

    `now_ms`: the instant of the step, or -1 if its write does not date grants;
    `closed_for_ms`: for how long this write closes the resource.
    """
    entries = [packed_claim(entry, now_ms) for entry in document.entries.values()]
    buckets = [[*one[:-1], int(one.is_sealed)] for one in document.buckets]
    closed = [closed_for_ms] if closed_for_ms else document.closed_ms
    rest = [document.limit, closed, document.marker, buckets]
    return [base.of_tokens, rest, entries]


def document_from(label: str, values: Any, stat: Stat) -> Document:
    """Decode a document; `stat` is that of a node which its write has set."""
    try:
        base_values, (limit, closed, marker, buckets), entries = values
        closed_ms = stat.mtime_ms + closed[0] if isinstance(closed, list) else closed
        base = base_from(label, base_values)
        document = Document(
            {}, int(limit), int(closed_ms), str(marker), [_bucket(*one) for one in buckets]
        )
    except (TypeError, ValueError, IndexError) as error:
        raise UnreadableError(f"a resource is not readable ({error})") from None
    for one in entries:
        entry = entry_from(one, base, stat)
        document.entries[entry.claim.session, entry.claim.n] = entry
    return document


def _bucket(node: Any, start: Any, head_start_ms: Any, moved: Any, is_sealed: Any) -> Bucket:
    return Bucket(str(node), str(start), int(head_start_ms), int(moved), bool(is_sealed))


Ring: TypeAlias = tuple[int, str, int]
"""What a bell says about a claim: its number, a wake, and the token that was granted, or 0."""
Sent: TypeAlias = tuple[tuple[str, str], int, Document]
"""A document that a write has set, with its resource and its version."""


def packed_rings(wakes: list[Wake], base: Base, documents: list[list[Any]]) -> bytes:
    """Encode the content of a bell; a document has kind, name, version and `packed` content."""
    rings = [[wake.n, wake.what, max(0, wake.token - RELATIVE)] for wake in wakes]
    return data_of([base.of_tokens, rings, documents])


def rings_from(label: str, data: bytes, stat: Stat) -> tuple[list[Ring], list[Sent]]:
    """Decode a bell."""
    try:
        base_values, rings, documents = decode(data)
        base = base_from(label, base_values)
        return [
            (int(n), str(what), base.token(stat.mzxid, int(i)) if what == WAKE_GRANTED else 0)
            for n, what, i in rings
        ], [
            ((str(kind), str(name)), int(version), document_from(label, values, stat))
            for kind, name, version, values in documents
        ]
    except (TypeError, ValueError) as error:
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
        claim = entry_from(said["claim"], Base(0, 0), Stat(0, 0, 0)).claim
        claim.reason, claim.by = str(said["reason"]), str(said["by"])
    except (TypeError, KeyError) as error:
        raise UnreadableError(f"a claim that was taken away is not readable ({error})") from None
    claim.state, claim.places = REVOKED, ()
    return claim
