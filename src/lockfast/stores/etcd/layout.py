"""The keys and values of a namespace.

    b ␟ session ␟ n                  word for a session about its claim n
    e                                epoch of tokens, schema, until when the log is written
    k ␟ session                      why a session was ended before its lease was over
    l ␟ slot                         the log: each transaction overwrites the last events
    m                                written by readers of the log, to know how far they are
    n ␟ kind ␟ name ␟ c              the resource is closed, as long as this key is there
    n ␟ kind ␟ name ␟ d ␟ session ␟ n  a holder's lock_delay: closes the resource if the holder's
                                     key is gone and this one is not
    n ␟ kind ␟ name ␟ e              the limit of a semaphore that was resized
    n ␟ kind ␟ name ␟ f ␟ session ␟ n  a holder waits for another mode
    n ␟ kind ␟ name ␟ h ␟ mode ␟ rank ␟ session ␟ n   a holder
    n ␟ kind ␟ name ␟ v ␟ rank ␟ session ␟ n          a reservation
    n ␟ kind ␟ name ␟ w ␟ rank ␟ session ␟ n          a waiting claim
    o ␟ session                      a session
    p ␟ session                      its last keep-alive
    u ␟ session ␟ n                  the claim's max_hold is not over
    x ␟ session                      the session is told of what is logged

`b`, `f`, `h`, `v`, `w`, `o`, `p` and `x` are under the lease of their session, `c` and `u` under a
lease as long as the span they stand for, `k` under one of ten to twenty minutes. Without a lease
are `e`, `l`, `m`, `d` (removed by the release it guards) and the limit, which counts only while
somebody uses the semaphore.

Every place of a claim carries the whole claim and what must be known of its session, so whoever
reads a line needs to read nothing else. A token is stored as the number to add to the revision
that wrote it, times STRIDE.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from functools import cache
from typing import Any, Final, NamedTuple, get_origin, get_type_hints

from lockfast.core.commands import HOLDING, REVOKED, WAITING, Event, Place
from lockfast.core.lines import FAR_MS
from lockfast.core.modes import MODES_OF_KIND
from lockfast.core.rows import Claim, Session
from lockfast.errors import StoreMisconfiguredError
from lockfast.stores.etcd.requests import Found, Kv

SCHEMA: Final = 2
EPOCH_KEY: Final = "e"
MARK_KEY: Final = "m"
STRIDE: Final = 128
"""Tokens per revision: as many as the transactions of one request can give."""
RELATIVE: Final = 1 << 61
"""Tokens from here on are places among those that the transaction under way will give."""
TOKEN_MAX: Final = (1 << 53) - 1
SEP: Final = "\x1f"
HISTORY: Final = ("k", "p")
"""The range of keys whose history tells everything that becomes of claims."""

encode = json.JSONEncoder(ensure_ascii=False, check_circular=False, separators=(",", ":")).encode


class UnreadableError(ValueError):
    """A stored value is not one that this version writes."""


def decode(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        raise UnreadableError(f"{text[:60]!r} is not JSON") from None


# ── keys ─────────────────────────────────────────────────────────────────────────────


def resource_prefix(kind: str, name: str) -> str:
    return f"n\x1f{kind}\x1f{name}\x1f"


def end_of(prefix: str) -> str:
    """Behind all keys that begin with a prefix, which ends in the separator."""
    return f"{prefix[:-1]} "


def scope_of(key: str) -> str:
    """What a key belongs to: its resource, or nothing but itself."""
    return SEP.join([*key.split(SEP, 3)[:3], ""]) if key[0] == "n" else key


def holder_key(prefix: str, mode: str, rank: str, session: str, n: int) -> str:
    return f"{prefix}h\x1f{mode}\x1f{rank}\x1f{session}\x1f{n}"


def line_key(prefix: str, line: str, rank: str, session: str, n: int) -> str:
    return f"{prefix}{line}\x1f{rank}\x1f{session}\x1f{n}"


def delay_key(prefix: str, session: str, n: int) -> str:
    return f"{prefix}d\x1f{session}\x1f{n}"


def converting_key(prefix: str, session: str, n: int) -> str:
    return f"{prefix}f\x1f{session}\x1f{n}"


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
    """A key of a resource, taken apart."""

    kind: str
    name: str
    line: str
    """c, d, e, f, h, v or w."""
    rank: str = ""
    session: str = ""
    n: int = 0


def parse_place(key: str) -> PlaceKey:
    """Raises UnreadableError for a key that is not of a resource."""
    try:
        family, kind, name, line, *rest = key.split(SEP)
        if family != "n" or kind not in MODES_OF_KIND:
            raise ValueError
        if line == "h":
            _, rank, session, n = rest
            return PlaceKey(kind, name, line, rank, session, int(n))
        if line in ("v", "w"):
            rank, session, n = rest
            return PlaceKey(kind, name, line, rank, session, int(n))
        if line in ("d", "f"):
            session, n = rest
            return PlaceKey(kind, name, line, "", session, int(n))
        if line not in ("c", "e") or rest:
            raise ValueError
    except ValueError:
        raise UnreadableError(f"there is a key {key!r} of another layout") from None
    return PlaceKey(kind, name, line)


def keys_of(claim: Claim) -> Iterator[tuple[Place, str]]:
    """Where a claim stands, by its state: one key per place."""
    for i, place in enumerate(claim.places):
        prefix = resource_prefix(place.kind, place.name)
        if claim.state == HOLDING:
            key = holder_key(prefix, place.mode, claim.rank, claim.session, claim.n)
        else:
            line = "v" if claim.passed >> i & 1 else "w"
            key = line_key(prefix, line, claim.rank, claim.session, claim.n)
        yield place, key


# ── values ───────────────────────────────────────────────────────────────────────────


class Base(NamedTuple):
    """What every grant compares."""

    epoch: int
    schema: int = SCHEMA
    log_until_ms: int = 0
    """Somebody reads the log: it is written until then, by any clock."""
    log_since: int = 0
    """The revision since which it has been written without a gap."""
    log_before: int = 0
    """The revision up to which it was written before that; 0: never."""


class Owner(NamedTuple):
    """What is stored of a session with each of its claims."""

    lease: int
    ttl_ms: int
    owner: str
    process: str
    inbox: str


class Record(NamedTuple):
    """A session."""

    lease: int
    ttl_ms: int
    owner: str
    process: str
    inbox: str
    metadata: str
    opened_ms: int

    @property
    def owned(self) -> Owner:
        return Owner(*self[:5])


class Alive(NamedTuple):
    """The last keep-alive of a session."""

    renewals: int
    renewed_ms: int


class Closing(NamedTuple):
    """A resource grants nothing for a while."""

    until_ms: int
    """For people; the key's lease decides. Of a lock_delay that has not begun, its length."""
    limit: int
    """Of a semaphore."""


class Tombstone(NamedTuple):
    """Why a session was ended."""

    reason: str
    by: str
    what: str
    """How its claims are logged."""
    record: Record
    renewals: int


class Word(NamedTuple):
    """What a session is told of one of its claims."""

    whats: list[str]
    offset: int = -1
    """Of the token, if it was granted."""
    reason: str = ""
    by: str = ""
    claim: str = ""
    """The claim, if it was taken away."""
    heirs: list[Any] | None = None
    """Of a granted claim that is alone: who is next in line, as key, value and revision."""


def typed(kind: Any, values: Any) -> Any:
    """A NamedTuple from stored values, checked against the types of its fields."""
    expected, required = _fields_of(kind)
    if (
        not isinstance(values, list)
        or not required <= len(values) <= len(expected)
        or not all(map(isinstance, values, expected))
    ):
        raise UnreadableError(f"{str(values)[:60]!r} is not a {kind.__name__}")
    return kind(*values)


@cache
def _fields_of(kind: Any) -> tuple[tuple[type, ...], int]:
    """What JSON makes of the fields of a NamedTuple, and how many of them must be there."""
    hints = get_type_hints(kind).values()
    plain = (int, str, list)
    types = tuple(next((one for one in plain if one in (h, get_origin(h))), object) for h in hints)
    return types, len(types) - len(kind._field_defaults)


def alive_from(kv: Kv | None, now_ms: int) -> Alive:
    """The last keep-alive; a session without one has not been renewed."""
    found: Alive = typed(Alive, decode(kv.value)) if kv is not None else Alive(0, now_ms)
    return found


def number_from(kv: Kv) -> int:
    value = decode(kv.value)
    if not isinstance(value, int):
        raise UnreadableError(f"{kv.key!r} is {kv.value[:40]!r}, not a number")
    return value


def session_row(session: str, record: Record, deadline_ms: int, renewals: int = 0) -> Session:
    """The lock table's row of a session."""
    return Session(
        session, record.ttl_ms, record.owner, record.metadata, record.inbox, record.process,
        record.opened_ms, deadline_ms, renewals,
    )  # fmt: skip


def ended_row(session: str, tomb: Tombstone) -> Session:
    found = session_row(session, Record(*tomb.record), FAR_MS, tomb.renewals)
    found.ended, found.by = tomb.reason, tomb.by
    return found


def base_from(label: str, kv: Kv | None) -> Base | None:
    """What `e` stores; raises StoreMisconfiguredError for a namespace of another layout."""
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


def packed_claim(claim: Claim, owner: Owner, epoch: int, tokens: int) -> str:
    """A claim as each of its keys stores it; `tokens` given before in the same request."""
    offset = -1
    if claim.token:
        offset = claim.token
        if claim.token >= RELATIVE:
            offset = epoch + tokens + claim.token - RELATIVE
    values = [
        list(owner), claim.actor, claim.priority, claim.entered_ms,
        [list(place) for place in claim.places], offset, int(claim.token >= RELATIVE),
        claim.granted_ms, claim.until_ms, claim.max_hold_ms, claim.lock_delay_ms, claim.block,
        claim.value, claim.passed, claim.step, claim.wants, claim.reason, claim.window_ms,
    ]  # fmt: skip
    return encode(values)


def claim_from(key: PlaceKey, kv: Kv) -> tuple[Claim, Owner]:
    values = decode(kv.value)
    try:
        (
            of, actor, priority, entered_ms, places, offset, is_relative, granted_ms, until_ms,
            max_hold_ms, lock_delay_ms, block, value, passed, step, wants, reason, window_ms,
        ) = values  # fmt: skip
        owner: Owner = typed(Owner, of)
        token = 0
        if offset >= 0:
            token = offset + STRIDE * kv.mod * is_relative
            if not 0 < token <= TOKEN_MAX:
                raise UnreadableError(f"token {token} is out of range")
        state = HOLDING if key.line == "h" else WAITING
        claim = Claim(
            key.session, key.n, tuple(_place(place) for place in places), state, key.rank,
            str(actor), int(priority), int(entered_ms), token, int(granted_ms), int(until_ms),
            int(max_hold_ms), int(lock_delay_ms), int(block),
            None if value is None else str(value), int(passed), int(step), str(wants),
            str(reason), "", int(window_ms),
        )  # fmt: skip
    except (TypeError, ValueError) as error:
        raise UnreadableError(f"the claim at {kv.key!r} is not readable ({error})") from None
    return claim, owner


def revoked_from(session: str, n: int, kv: Kv) -> Claim | None:
    """The claim that a word says was taken away."""
    word: Word = typed(Word, decode(kv.value))
    if not word.claim:
        return None
    claim, _ = claim_from(PlaceKey("", "", "b", "", session, n), kv._replace(value=word.claim))
    claim.state, claim.reason, claim.by, claim.places = REVOKED, word.reason, word.by, ()
    return claim


def told_heirs(heirs: Found | None) -> list[Any] | None:
    """Who is next in line behind a granted claim, as a word says it."""
    return None if heirs is None else [list(kv[:3]) for kv in heirs.kvs]


def heirs_of(told: list[Any] | None) -> Found | None:
    """Who is next in line behind a granted claim, if a word says so.

    Others may stand behind the last one named, so one more is counted. If nobody is named,
    nobody waited.
    """
    if told is None:
        return None
    try:
        kvs = [Kv(str(key), str(value), int(mod)) for key, value, mod in told]
        for kv in kvs:
            claim_from(parse_place(kv.key), kv)
    except (TypeError, ValueError):
        return None  # whoever leaves then reads first
    return Found(kvs, len(kvs) + 1 if kvs else 0)


def _place(values: Any) -> Place:
    kind, name, mode, weight, limit = values
    if mode not in MODES_OF_KIND.get(kind, ()):
        raise UnreadableError(f"{kind!r} cannot be held {mode!r}")
    return Place(kind, str(name), mode, int(weight), int(limit))


def packed_word(word: Word, epoch: int, tokens: int) -> str:
    """A word as it is stored, with a token that is known now but for the revision."""
    if word.offset >= RELATIVE:
        word = word._replace(offset=epoch + tokens + word.offset - RELATIVE)
    return encode(list(word))


def packed_events(events: Iterable[Event], epoch: int, tokens: int) -> str:
    """What one transaction logs."""
    packed: list[list[Any]] = []
    for event in events:
        values: list[Any] = list(event[1:])
        if event.token >= RELATIVE:
            values[-2] = [epoch + tokens + event.token - RELATIVE]
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
