"""The lock table's rows as keys and values of etcd.

    e                          the epoch of tokens, the schema, until when the log is written
    o ␟ session                a session: owner, TTL, what became of it
    s ␟ session                that it lives: under its etcd lease, gone with it
    c ␟ session ␟ n            a claim, unless it is alone at its resource: then that has it
    y ␟ session ␟ kind ␟ name  where a session may be alone at a resource
    r ␟ kind ␟ name ␟          a resource in use
    r ␟ kind ␟ name ␟ !        there, if nobody may stand in line without a look at it
    r ␟ kind ␟ name ␟ h ␟ rank   its holders, when there is more than one
    r ␟ kind ␟ name ␟ v ␟ rank   its reservations
    r ␟ kind ␟ name ␟ w ␟ rank   its waiting line
    d ␟ instant ␟ …            what ends by itself, as the table writes it
    i ␟ session                word for a session: who was granted, who should look
    x ␟ session                a session that watches the log
    l                          the log: transactions write their events over the last ones
    z                          how far the log has been numbered

All rows of a resource lie side by side, so one range reads them. A line's rows carry the
claim itself, if it has one place only: whoever reads the line needs nothing else. A token
given by the transaction that writes it is stored as what is to be added to its revision.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import fields
from operator import attrgetter
from typing import Any, Final, NamedTuple

from lockfast.core.commands import Event, Place
from lockfast.core.rows import SEPARATOR, Claim, ResourceRow, Session

EPOCH_KEY: Final = "e"
LOG_KEY: Final = "l"
NUMBERED_KEY: Final = "z"
SCHEMA: Final = 1

FOLLOWED: Final = "followed"
"""Word for a holder that somebody stands in line behind it, who that is, and at what row."""

STRIDE: Final = 128
"""Tokens per revision: as many as one transaction can grant."""
RELATIVE: Final = 1 << 61
"""Tokens from here on are places among those the transaction under way will give."""

_LINES: Final = "hvw"

encode = json.JSONEncoder(ensure_ascii=False, check_circular=False, separators=(",", ":")).encode
decode = json.JSONDecoder().decode


# ── keys ─────────────────────────────────────────────────────────────────────────────


def stored_key(key: str) -> str:
    """Where etcd has a row of the table."""
    family = key[0]
    if family == "r":
        return f"{key}{SEPARATOR}"
    if family in _LINES:
        _, kind, name, rank = key.split(SEPARATOR, 3)
        return f"r\x1f{kind}\x1f{name}\x1f{family}\x1f{rank}"
    return key


def table_key(key: str) -> str:
    """The row of the table that etcd has under a key."""
    if key[0] != "r":
        return key
    _, kind, name, *rest = key.split(SEPARATOR, 4)
    return (
        f"r\x1f{kind}\x1f{name}" if rest == [""] else f"{rest[0]}\x1f{kind}\x1f{name}\x1f{rest[-1]}"
    )


def resource_of(key: str) -> str:
    """What the keys of a resource begin with, from any of them."""
    return SEPARATOR.join([*key.split(SEPARATOR, 3)[:3], ""])


def is_line(key: str) -> bool:
    """Whether a key is that of a claim's place in a line."""
    return key[0] == "r" and key.count(SEPARATOR) > 3


def marker_of(resource: str) -> str:
    return f"{resource}!"


def end_of(prefix: str) -> str:
    """Behind all keys that begin with a prefix, which ends in the separator."""
    return f"{prefix[:-1]} "


def waiting_of(resource: str) -> str:
    return f"{resource}w{SEPARATOR}"


def living_key(session: str) -> str:
    return f"s\x1f{session}"


def record_key(session: str) -> str:
    return f"o\x1f{session}"


def alone_key(session: str, resource: str) -> str:
    """Word that a session may hold a resource, whose row alone says so."""
    return f"y\x1f{session}{resource[1:-1]}"


def alone_prefix(session: str) -> str:
    return f"y\x1f{session}\x1f"


def resource_alone(key: str) -> str:
    """What the keys of the resource begin with that such a word is of."""
    return f"r\x1f{key.split(SEPARATOR, 2)[2]}\x1f"


def inbox_key(session: str) -> str:
    return f"i\x1f{session}"


def watcher_key(session: str) -> str:
    return f"x\x1f{session}"


# ── tokens ───────────────────────────────────────────────────────────────────────────


def packed_token(token: int, epoch: int) -> int | str:
    return token if token < RELATIVE else f"+{epoch + token - RELATIVE}"


def token_at(packed: int | str, revision: int) -> int:
    """The token itself, given the revision that wrote it."""
    return packed if isinstance(packed, int) else int(packed) + STRIDE * revision


def given(token: int, epoch: int, revision: int) -> int:
    """The token a transaction has given, once its revision is known."""
    return token if token < RELATIVE else epoch + token - RELATIVE + STRIDE * revision


# ── values ───────────────────────────────────────────────────────────────────────────


class Base(NamedTuple):
    """What all steps that enter or leave compare."""

    epoch: int
    schema: int = SCHEMA
    log_until_ms: int = 0
    """Somebody reads the log, so that it is written until then, by any clock."""


class Owner(NamedTuple):
    """What is said of a session with each of its claims."""

    owner: str
    inbox: str
    process: str
    ttl_ms: int


class Record(NamedTuple):
    """A session, apart from what its keep-alives change."""

    ttl_ms: int
    owner: str
    metadata: str
    inbox: str
    process: str
    opened_ms: int
    ended: str = ""
    by: str = ""
    forgotten_ms: int = 0
    """Of an ended one: when nobody needs to know any more."""
    renewals: int = 0
    """Of an ended one: how many there were."""
    sentence: Sequence[str] = ()
    """Of one that is being ended, in several steps: how it ends, and why."""


class Living(NamedTuple):
    """What keep-alives change of a session."""

    renewals: int
    renewed_ms: int
    lowest: int
    """Every claim number below this one is finished."""
    watching: bool


_claim_values: Final = attrgetter(*(field.name for field in fields(Claim)))
_CLAIM_DEFAULTS: Final = [field.default for field in fields(Claim)]
_PLACE_DEFAULTS: Final = [*[None] * 3, *Place._field_defaults.values()]
_TOKEN_AT: Final = [field.name for field in fields(Claim)].index("token")
_PLACES_AT: Final = 2
_resource_values: Final = attrgetter(
    "held", "reserved", "holders", "reservations", "sole", "converting", "limit", "closed_ms",
    "kept",
)  # fmt: skip


def _cut(values: list[Any], defaults: list[Any]) -> list[Any]:
    """Without what is as it mostly is, from the end on: every byte is parsed by the server."""
    while values[-1] == defaults[len(values) - 1]:
        values.pop()
    return values


def packed_claim(claim: Claim, owner: Owner, epoch: int) -> list[Any]:
    values = list(_claim_values(claim))
    values[_TOKEN_AT] = packed_token(claim.token, epoch)
    values[_PLACES_AT] = [_cut(list(place), _PLACE_DEFAULTS) for place in claim.places]
    return [packed_owner(owner, claim.session), _cut(values, _CLAIM_DEFAULTS)]


def packed_owner(owner: Owner, session: str) -> list[Any]:
    of: list[Any] = list(owner)
    if owner.inbox == inbox_key(session):
        of[1] = 0
    return of


def claim_from(packed: list[Any], revision: int) -> tuple[Claim, Owner]:
    of, values = packed
    values = list(values)
    values[_PLACES_AT] = tuple(Place(*place) for place in values[_PLACES_AT])
    if len(values) > _TOKEN_AT:
        values[_TOKEN_AT] = token_at(values[_TOKEN_AT], revision)
    claim, owner = Claim(*values), Owner(*of)
    return claim, owner if owner.inbox else owner._replace(inbox=_inbox(of[1], claim))


def _inbox(stored: str | int, claim: Claim) -> str:
    return inbox_key(claim.session) if stored == 0 else ""


class Holder(NamedTuple):
    """The only holder of a resource, as the resource's row has it."""

    packed: list[Any]
    is_alone: bool
    """There is no other row of the claim's."""


def packed_resource(row: ResourceRow, sole: list[Any] | None, *, is_alone: bool = False) -> str:
    if sole is not None and as_simple(row):
        return encode([sole, 1] if is_alone else [sole])
    return encode([*_resource_values(row), sole, int(is_alone)])


def as_simple(row: ResourceRow) -> bool:
    """Whether there is nothing to say of a resource but who holds it."""
    return not (
        row.reserved or row.reservations or row.converting or row.limit or row.closed_ms or row.kept
    )


def resource_from(kind: str, name: str, text: str) -> tuple[ResourceRow, Holder | None]:
    """A resource without the number of those who wait, and its only holder."""
    values = decode(text)
    if len(values) <= 2:
        packed = values[0]
        session, n, places, _, rank, *_ = packed[1]
        sole = SEPARATOR.join([rank, session, str(n)])
        row = ResourceRow(kind, name, {places[0][2]: 1}, {}, 1, 0, 0, sole)
        return row, Holder(packed, len(values) == 2)
    held, reserved, holders, reservations, *rest, packed, is_alone = values
    row = ResourceRow(kind, name, held, reserved, holders, 0, reservations, *rest)
    return row, Holder(packed, bool(is_alone)) if packed is not None else None


def packed_event(event: Event, epoch: int) -> list[Any]:
    values: list[Any] = list(event[1:])
    values[-2] = packed_token(event.token, epoch)
    return values


def event_from(packed: list[Any], revision: int, position: int) -> Event:
    values = list(packed)
    values[-2] = token_at(values[-2], revision)
    return Event(position, *values)


def session_from(
    session: str, record: Record, living: Living | None, now_ms: int, *, by_lease: bool
) -> Session:
    """The session as the table knows it, but for its claims."""
    found = Session(session, *record[:6], deadline_ms=0, ended=record.ended, by=record.by)
    if record.ended:
        found.deadline_ms = record.forgotten_ms
        found.renewals = record.renewals
    elif living is not None:
        found.deadline_ms = living.renewed_ms + record.ttl_ms
        if by_lease and found.deadline_ms <= now_ms:
            # Its client's clock says otherwise, but the lease is there: it lives.
            found.deadline_ms = now_ms + 1
        found.renewals = living.renewals
        found.watching = living.watching
    return found
