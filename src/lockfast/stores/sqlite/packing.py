"""Rows of the lock table as text: JSON lists, readable with `sqlite3` by hand.

The lines of claims are plain references. A row that every step writes has an encoder written
out here, which takes a fraction of the time of the general one.

Whatever is in a database may have been damaged or written by hand, so decoding checks the type
of every field and raises UnreadableError for a row that the lock table could not work with.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import MISSING, fields
from functools import lru_cache
from json.encoder import encode_basestring as quote
from operator import attrgetter
from typing import Any, Final

from lockfast.core.commands import Event, Place
from lockfast.core.rows import Claim, ResourceRow, Session

SESSIONS_CACHED: Final = 256


class UnreadableError(Exception):
    """A row of the database that this program cannot have written."""

    def __init__(self, key: str, text: str) -> None:
        self.key = key
        self.text = text
        super().__init__(f"row {key!r} is unreadable: {text[:80]!r}")


encode = json.JSONEncoder(ensure_ascii=False, check_circular=False, separators=(",", ":")).encode
_scan: Final = json.JSONDecoder().scan_once  # type: ignore[attr-defined]
"""The decoder behind `json.loads`, called directly because it takes half the time."""


def _packer(kind: type) -> Callable[[Any], str]:
    """Encode a row as a list of its fields, without trailing defaults."""
    known = fields(kind)
    values_of = attrgetter(*(field.name for field in known))
    defaults = [
        field.default_factory() if field.default_factory is not MISSING else field.default
        for field in known
    ]

    def pack_row(row: Any) -> str:
        values = values_of(row)
        count = len(values)
        while values[count - 1] == defaults[count - 1]:
            count -= 1
        return encode(values[:count])

    return pack_row


_pack_any_session: Final = _packer(Session)
_pack_any_claim: Final = _packer(Claim)
_pack_any_resource: Final = _packer(ResourceRow)


@lru_cache(SESSIONS_CACHED)
def _session_start(*unchanging: object) -> str:
    return encode(unchanging)[:-1]


def _pack_session(row: Session) -> str:
    if row.watching or row.ended:
        return _pack_any_session(row)
    start = _session_start(
        row.id, row.ttl_ms, row.owner, row.metadata, row.inbox, row.process, row.opened_ms
    )
    return (
        f"{start},{row.deadline_ms},{row.renewals},{row.highest},"
        f'"{row.unseen}",{row.claims},{row.checksum}]'
    )


_rare_of_claim: Final = attrgetter(
    "until_ms", "max_hold_ms", "lock_delay_ms", "block", "value", "passed", "step", "wants",
    "reason", "window_ms",
)  # fmt: skip
_USUAL_CLAIM: Final = (0, 0, 0, 1, None, 0, 0, "", "", 0)


def _pack_claim(row: Claim) -> str:
    if len(row.places) != 1 or _rare_of_claim(row) != _USUAL_CLAIM:
        return _pack_any_claim(row)
    kind, name, mode, weight, limit = row.places[0]
    return (
        f'[{quote(row.session)},{row.n},[["{kind}",{quote(name)},"{mode}",{weight},{limit}]],'
        f'"{row.state}","{row.rank}",{quote(row.actor)},{row.priority},{row.entered_ms},'
        f"{row.token},{row.granted_ms}]"
    )


def _pack_resource(row: ResourceRow) -> str:
    if (
        not row.sole
        or row.reservations
        or row.converting
        or row.limit
        or row.closed_ms
        or row.retained
        or len(row.held) != 1
    ):
        return _pack_any_resource(row)
    ((mode, weight),) = row.held.items()
    return (
        f'["{row.kind}",{quote(row.name)},{{"{mode}":{weight}}},{{}},1,{row.waiting},0,'
        f"{quote(row.sole)}]"
    )


def _pack_text(row: str) -> str:
    return row


PACKERS: Final[dict[type, Callable[[Any], str]]] = {
    Session: _pack_session,
    Claim: _pack_claim,
    ResourceRow: _pack_resource,
    str: _pack_text,
}


_PLAIN: Final = frozenset("hvwdx")
"""Families of rows that are plain text."""
_KINDS: Final[dict[str, type]] = {"s": Session, "c": Claim, "r": ResourceRow}
_TYPES: Final[dict[str, frozenset[type]]] = {
    "str": frozenset({str}),
    "int": frozenset({int}),
    "bool": frozenset({bool}),
    "str | None": frozenset({str, type(None)}),
    "tuple[Place, ...]": frozenset({list}),
    "dict[str, int]": frozenset({dict}),
}
"""For each annotation of a field, the types that JSON may have for it."""
_FIELDS: Final[dict[type, list[frozenset[type]]]] = {
    kind: [_TYPES[str(field.type)] for field in fields(kind)] for kind in _KINDS.values()
}
_TEXT, _INTEGER = _TYPES["str"], _TYPES["int"]
_FIELDS[Place] = [*[_TEXT] * 3, _INTEGER, _INTEGER]
_FIELDS[Event] = [_INTEGER, _INTEGER, *[_TEXT] * 5, _INTEGER, _TEXT, _INTEGER, _TEXT]


_GOOD: Final[set[tuple[object, ...]]] = set()
"""Combinations of row kind and value types that were already validated, which is faster than
checking each value."""


def _has_types(values: list[Any], kind: type) -> bool:
    found = (kind, *map(type, values))
    if found in _GOOD:
        return True
    types = _FIELDS[kind]
    if len(values) > len(types):
        return False
    if not all(type(value) in good for value, good in zip(values, types, strict=False)):
        return False
    _GOOD.add(found)
    return True


def unpack(key: str, text: str) -> Any:
    """Decode a row. Raises UnreadableError."""
    family = key[:1]
    if family in _PLAIN and type(text) is str:
        return text
    try:
        kind = _KINDS[family]
        values, end = _scan(text, 0)
        if end != len(text) or not _has_types(values, kind):
            raise ValueError
        if kind is Claim:
            values[2] = tuple([_place(place) for place in values[2]])
        elif kind is ResourceRow and not all(map(_are_counts, values[2:4])):
            raise ValueError
        return kind(*values)
    except _UNREADABLE:
        raise UnreadableError(key, str(text)) from None


_UNREADABLE: Final = (ValueError, TypeError, LookupError, StopIteration, RecursionError)


def _place(values: Any) -> Place:
    if not _has_types(values, Place):
        raise ValueError
    return Place(*values)


def _are_counts(counts: dict[Any, Any]) -> bool:
    return all(type(count) is int for count in counts.values())


def pack_event(event: Event) -> str:
    position, wall_ms, what, kind, name, mode, session, n, owner, token, detail = event
    return (
        f'[{position},{wall_ms},"{what}","{kind}",{quote(name)},"{mode}",{quote(session)},{n},'
        f"{quote(owner)},{token},{quote(detail)}]"
    )


def unpack_event(text: str) -> Event:
    """Decode an entry of the log. Raises UnreadableError."""
    try:
        values, _ = _scan(text, 0)
        if not _has_types(values, Event):
            raise ValueError
        return Event(*values)
    except _UNREADABLE:
        raise UnreadableError("log", text) from None


def position_of(text: str) -> int:
    """Return the position of an entry of the log. Raises UnreadableError."""
    try:
        return int(text[1 : text.index(",")])
    except ValueError:
        raise UnreadableError("log", text) from None
