"""The keys and values of a namespace.

    b ␟ session ␟ n                  `Word`: a message to a session about its claim n
    e                                epoch of tokens, schema, until when the log is written
    k ␟ session                      tombstone: why a session was ended before its lease did
    l ␟ slot                         the log: each transaction overwrites the last events
    m                                written by readers of the log, to mark its current end
    n ␟ kind ␟ name ␟ a ␟ rank       no waiting claim has a lower rank
    n ␟ kind ␟ name ␟ c              the resource is closed while this key exists
    n ␟ kind ␟ name ␟ d ␟ session ␟ slot   a holder's lock_delay: closes the resource if the
                                     holder's key is gone and this one is not
    n ␟ kind ␟ name ␟ e              the limit of a semaphore that was resized
    n ␟ kind ␟ name ␟ f ␟ session ␟ slot   a holder that waits for another mode
    n ␟ kind ␟ name ␟ h ␟ mode ␟ session ␟ slot   a holder
    n ␟ kind ␟ name ␟ v ␟ session ␟ slot          a reservation
    n ␟ kind ␟ name ␟ w ␟ rank ␟ session ␟ slot   a waiting claim
    o ␟ session                      a session
    p ␟ session                      its last keep-alive
    u ␟ session ␟ n                  exists until the claim's max_hold has elapsed
    x ␟ session                      the session is notified of logged events

`b`, `f`, `h`, `v`, `w`, `o`, `p` and `x` are under the lease of their session, `a` under that of
the claim whose grant wrote it, `c` and `u` under a lease as long as the period they represent, `k`
under one of ten to twenty minutes. The others have no lease: `e`, `l`, `m`, `d` (deleted by the
release it guards) and the limit, which counts only while the semaphore is in use.

Every key of a claim stores the whole claim and what must be known about its session, so a client
that reads a queue needs to read nothing else. A token is stored as the number to add to STRIDE
times the revision that wrote it.

**Deleted keys have a cost.** Until its history is compacted, etcd visits every key that was ever in
a range whenever it reads or compares the range, so a resource must not leave a new key behind with
every claim. A claim therefore has a *slot*, a short name that its session uses again after the
claim has ended. Only the key of a waiting claim contains something that never repeats, its rank.
Ranks increase, so the deleted keys of a queue are before the first waiting claim, and ranges over a
queue begin at its *start*, an `a` key. Every transaction that adds a waiting claim deletes the
starts behind it, so a start is right as long as it exists.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cache, lru_cache
from typing import Any, Final, NamedTuple, get_origin, get_type_hints

from lockfast.core.commands import HOLDING, REVOKED, WAITING, Event, Place
from lockfast.core.lines import FAR_MS
from lockfast.core.modes import MODES_OF_KIND
from lockfast.core.rows import Claim, Session
from lockfast.errors import StoreMisconfiguredError
from lockfast.stores.derived.stored import (
    RELATIVE,
    UnreadableError,
    decode,
    encode,
    packed_entry,
    packed_grant,
)
from lockfast.stores.derived.stored import claim_from as stored_claim
from lockfast.stores.etcd.requests import Found, Keys, Kv, Range

SCHEMA: Final = 3
EPOCH_KEY: Final = "e"
MARK_KEY: Final = "m"
STRIDE: Final = 128
"""Tokens per revision: the most that the transactions of one request can allocate."""
SEP: Final = "\x1f"
PARSED_MAX: Final = 1024
HEIR: Final = "heir"
"""What a `Word` says to a holder that had no heir when it was granted."""
HISTORY: Final = ("k", "p")
"""The range of keys whose history records the fate of every claim."""

# ── keys ─────────────────────────────────────────────────────────────────────────────


def resource_prefix(kind: str, name: str) -> str:
    return f"n\x1f{kind}\x1f{name}\x1f"


def end_of(prefix: str) -> str:
    """Return the end of the range of keys with this prefix, which must end in the separator."""
    return f"{prefix[:-1]} "


def scope_of(key: str) -> str:
    """Return the scope of a key: the prefix of its resource, or else the key itself."""
    return SEP.join([*key.split(SEP, 3)[:3], ""]) if key[0] == "n" else key


FIELDS: Final = {
    "a": ("rank",),
    "c": (),
    "d": ("session", "slot"),
    "e": (),
    "f": ("session", "slot"),
    "h": ("mode", "session", "slot"),
    "v": ("session", "slot"),
    "w": ("rank", "session", "slot"),
}
"""What follows the line in each key of a resource."""


def place_key(prefix: str, line: str, *fields: str) -> str:
    """Return a key of a resource; `FIELDS` says what follows each line."""
    return SEP.join((prefix + line, *fields))


def starts_from(prefix: str, rank: str) -> tuple[str, str]:
    """Return the range of the starts that are at `rank` or behind it."""
    return place_key(prefix, "a", rank), f"{prefix}a "


def queue_from(prefix: str, start: str) -> tuple[str, str]:
    """Return the range of a queue from its start on; "" if that is not known."""
    return f"{prefix}w\x1f{start}", f"{prefix}w "


def session_key(session: str) -> str:
    return f"o\x1f{session}"


def alive_key(session: str) -> str:
    return f"p\x1f{session}"


def ended_key(session: str) -> str:
    return f"k\x1f{session}"


def watching_key(session: str) -> str:
    return f"x\x1f{session}"


def word_key(session: str, n: int) -> str:
    return f"b\x1f{session}\x1f{n:016x}"


def words_prefix(session: str) -> str:
    return f"b\x1f{session}\x1f"


def log_key(order: int) -> str:
    return f"l\x1f{order:02}"


def bound_key(session: str, n: int) -> str:
    return f"u\x1f{session}\x1f{n}"


class PlaceKey(NamedTuple):
    """A parsed key of a resource, or what is known of one."""

    kind: str
    name: str
    line: str
    rank: str = ""
    session: str = ""
    slot: str = ""
    mode: str = ""

    @property
    def is_claim(self) -> bool:
        """Whether a claim is stored here."""
        return self.line in ("h", "v", "w")

    def candidates(self) -> list[Range]:
        """Return the keys that the claim may have there, for every mode and state."""
        prefix = resource_prefix(self.kind, self.name)
        modes = sorted(MODES_OF_KIND.get(self.kind, ()))
        found = [place_key(prefix, "h", mode, self.session, self.slot) for mode in modes]
        found.append(place_key(prefix, "v", self.session, self.slot))
        if self.rank:  # it is unknown if only the key of a holder or a reservation was seen
            found.append(place_key(prefix, "w", self.rank, self.session, self.slot))
        return [Range(key) for key in found]


@lru_cache(PARSED_MAX)  # a command parses the same keys several times
def parse_place(key: str) -> PlaceKey:
    """Parse a key of a resource. Raises UnreadableError for any other key."""
    try:
        family, kind, name, line, *rest = key.split(SEP)
        if family != "n" or kind not in MODES_OF_KIND:
            raise ValueError
        return PlaceKey(kind, name, line, **dict(zip(FIELDS[line], rest, strict=True)))
    except (ValueError, LookupError):
        raise UnreadableError(f"there is a key {key!r} of another layout") from None


def nothing_new(keys: Keys, prefix: str, start: str, end: str, revision: int) -> list[str]:
    """Compare that nothing was written at a resource since a revision, up to the key `end`."""
    if not start:
        return [keys.nothing_since(f"{prefix}c", end, revision)]
    compares = [keys.nothing_since(f"{prefix}c", f"{prefix}w", revision)]
    queue = f"{prefix}w\x1f{start}"
    if end > queue:
        compares += [
            keys.nothing_since(queue, end, revision),
            keys.present(*starts_from(prefix, start)),
        ]
    return compares


def nothing_stored(keys: Keys, prefix: str, start: str) -> list[str]:
    """Compare that a resource is free: no claim holds it, waits for it or keeps it closed."""
    if not start:
        return [keys.absent(prefix, end_of(prefix))]
    return [
        keys.absent(f"{prefix}c", f"{prefix}w"),
        keys.absent(*queue_from(prefix, start)),
        keys.present(*starts_from(prefix, start)),
    ]


def keys_of(claim: Claim, slot: str) -> Iterator[tuple[Place, str]]:
    """Yield each place of a claim and its key, which depends on the claim's state."""
    session = claim.session
    for i, place in enumerate(claim.places):
        prefix = resource_prefix(place.kind, place.name)
        if claim.state == HOLDING:
            yield place, place_key(prefix, "h", place.mode, session, slot)
        elif claim.passed >> i & 1:
            yield place, place_key(prefix, "v", session, slot)
        else:
            yield place, place_key(prefix, "w", claim.rank, session, slot)


# ── values ───────────────────────────────────────────────────────────────────────────


class Base(NamedTuple):
    """The values that every grant compares."""

    epoch: int
    schema: int = SCHEMA
    log_until_ms: int = 0
    """The log is written until this instant, because it has a reader; compared with any clock."""
    log_since: int = 0
    """The revision since which the log has no gap."""
    log_before: int = 0
    """The revision at which an earlier period of logging ended; 0 if there was none."""


class KnownBase(NamedTuple):
    """A base and its stored form, which stay together: a grant compares one and uses the other."""

    base: Base
    kv: Kv


class Owner(NamedTuple):
    """What each claim stores of its session."""

    lease: int
    ttl_ms: int
    owner: str
    process: str
    inbox: str


class Record(NamedTuple):
    """A session, as stored."""

    lease: int
    ttl_ms: int
    owner: str
    process: str
    inbox: str
    metadata: str
    opened_ms: int
    home: str = ""
    """The store object that enters its claims; see `owned.py`."""

    @property
    def owned(self) -> Owner:
        return Owner(*self[:5])


class Alive(NamedTuple):
    """The last keep-alive of a session."""

    renewals: int
    renewed_ms: int


class Closing(NamedTuple):
    """A period in which a resource grants nothing."""

    until_ms: int
    """For display only: the key's lease decides. The length of a lock_delay that has not begun."""
    limit: int
    """The limit of a semaphore."""


class Tombstone(NamedTuple):
    """Why a session was ended."""

    reason: str
    by: str
    what: str
    """The event that is logged for its claims."""
    record: Record
    renewals: int


class Word(NamedTuple):
    """A message to a session about one of its claims."""

    whats: list[str]
    offset: int = -1
    """The stored token, if the claim was granted."""
    reason: str = ""
    by: str = ""
    claim: str = ""
    """The claim, if it was revoked."""
    heirs: list[Any] | None = None
    """For a claim that is the only holder: the next in the queue, as key, value and revision. A
    revision of 0 means that of the word."""


def typed(kind: Any, values: Any) -> Any:
    """Build a NamedTuple from stored values, checked against its field types."""
    expected, required = _fields_of(kind)
    if (
        not isinstance(values, list)
        or not required <= len(values) <= len(expected)
        or not all(map(isinstance, values, expected))
    ):
        raise UnreadableError(f"{str(values)[:60]!r} is not a {kind.__name__}")
    return kind(*values)


def read(kind: Any, kv: Kv) -> Any:
    """Return the NamedTuple that is stored at a key."""
    return typed(kind, decode(kv.value))


@cache
def _fields_of(kind: Any) -> tuple[tuple[type, ...], int]:
    """Return the JSON types of a NamedTuple's fields, and the number of required ones."""
    hints = get_type_hints(kind).values()
    plain = (int, str, list)
    types = tuple(next((one for one in plain if one in (h, get_origin(h))), object) for h in hints)
    return types, len(types) - len(kind._field_defaults)


def alive_from(kv: Kv | None, now_ms: int) -> Alive:
    """Return the last keep-alive; without one, the session has not been renewed."""
    found: Alive = read(Alive, kv) if kv is not None else Alive(0, now_ms)
    return found


def number_from(kv: Kv) -> int:
    value = decode(kv.value)
    if not isinstance(value, int):
        raise UnreadableError(f"{kv.key!r} is {kv.value[:40]!r}, not a number")
    return value


def session_row(session: str, record: Record, deadline_ms: int, renewals: int = 0) -> Session:
    """Return the lock table's row of a session."""
    return Session(
        session, record.ttl_ms, record.owner, record.metadata, record.inbox, record.process,
        record.opened_ms, deadline_ms, renewals,
    )  # fmt: skip


def ended_row(session: str, tomb: Tombstone) -> Session:
    found = session_row(session, Record(*tomb.record), FAR_MS, tomb.renewals)
    found.ended, found.by = tomb.reason, tomb.by
    return found


def base_from(label: str, kv: Kv | None) -> Base | None:
    """Return what `e` stores. Raises StoreMisconfiguredError for an unknown schema."""
    if kv is None:
        return None
    values = decode(kv.value)
    if isinstance(values, list) and len(values) > 1 and values[1] != SCHEMA:
        raise StoreMisconfiguredError(
            label,
            f"the namespace has schema {values[1]!r}, this version uses {SCHEMA}",
            "use another namespace, or delete its keys when no client uses it",
        )
    base: Base = typed(Base, values)
    return base


def _offset(token: int, epoch: int, tokens: int) -> int:
    """Return a token as it is stored: without the revision, if that is not known yet."""
    return token if token < RELATIVE else epoch + tokens + token - RELATIVE


def packed_claim(claim: Claim, owner: Owner, epoch: int, tokens: int) -> str:
    """Encode a claim for its keys; `tokens` counts those allocated earlier in the same request."""
    offset = _offset(claim.token, epoch, tokens) if claim.token else -1
    token = [offset, int(claim.token >= RELATIVE)]
    entry = [claim.n, claim.rank, *packed_entry(claim)]
    return encode([list(owner), *entry, *token, *packed_grant(claim)])


def claim_from(key: PlaceKey, kv: Kv) -> tuple[Claim, Owner]:
    try:
        values = list(decode(kv.value))
        of, n, rank, *entry, offset, is_relative = values[:9]
        owner: Owner = typed(Owner, of)
        token = offset + STRIDE * kv.mod * is_relative if offset >= 0 else 0
        state = HOLDING if key.line == "h" else WAITING
        claim = stored_claim(key.session, int(n), state, str(rank), entry, token, values[9:])
    except (TypeError, ValueError) as error:
        raise UnreadableError(f"the claim at {kv.key!r} is not readable ({error})") from None
    return claim, owner


def revoked_from(session: str, n: int, kv: Kv) -> Claim | None:
    """Return the claim that a word says was revoked, or None."""
    word: Word = read(Word, kv)
    if not word.claim:
        return None
    claim, _ = claim_from(PlaceKey("", "", "b", "", session), kv._replace(value=word.claim))
    if claim.n != n:
        raise UnreadableError(f"the word at {kv.key!r} is about claim {claim.n}")
    claim.state, claim.reason, claim.by, claim.places = REVOKED, word.reason, word.by, ()
    return claim


def told_heirs(heirs: Found | None) -> list[Any] | None:
    """Encode the next claims in the queue behind a granted one, for its word."""
    return None if heirs is None else [list(kv[:3]) for kv in heirs.kvs]


def heirs_of(told: list[Any] | None, revision: int) -> Found | None:
    """Decode the next claims in the queue behind a holder, if a word of this revision names any.

    More claims may wait behind the last one named, so the count is one higher. If none is named,
    none was waiting.
    """
    if told is None:
        return None
    try:
        kvs = [Kv(str(key), str(value), int(mod) or revision) for key, value, mod in told]
        for kv in kvs:
            claim_from(parse_place(kv.key), kv)
    except (TypeError, ValueError):
        return None  # the holder then reads the queue when it releases
    return Found(kvs, len(kvs) + 1 if kvs else 0)


def packed_word(word: Word, epoch: int, tokens: int) -> str:
    """Encode a word, completing the token except for the revision."""
    return encode(list(word._replace(offset=_offset(word.offset, epoch, tokens))))


def packed_events(events: Iterable[Event], epoch: int, tokens: int) -> str:
    """Encode the events that one transaction logs."""
    packed: list[list[Any]] = []
    for event in events:
        values: list[Any] = list(event[1:])
        if event.token >= RELATIVE:
            values[-2] = [_offset(event.token, epoch, tokens)]
        packed.append(values)
    return encode(packed)


def event_from(values: Any, revision: int, position: int) -> Event:
    try:
        wall_ms, what, kind, name, mode, session, n, owner, token, detail = values
        if isinstance(token, list):
            token = token[0] + STRIDE * revision
        return Event(
            position, int(wall_ms), str(what), str(kind), str(name), str(mode), str(session),
            int(n), str(owner), int(token), str(detail),
        )  # fmt: skip
    except (TypeError, ValueError, LookupError) as error:
        raise UnreadableError(f"an event is not readable ({error})") from None
