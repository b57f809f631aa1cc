"""Rows of the lock table as text: JSON lists, so that `sqlite3` by hand shows them.

The lines of claims are plain references. What every step writes is written out here, for
the general encoder takes several times as long.
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

encode = json.JSONEncoder(ensure_ascii=False, check_circular=False, separators=(",", ":")).encode
_scan: Final = json.JSONDecoder().scan_once  # type: ignore[attr-defined]
"""What `decode` calls in the end, without the calls in between."""


def _packer(kind: type) -> Callable[[Any], str]:
    """A row as a list of its fields, without those at the end that are as by default."""
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
        or row.waiting
        or row.reservations
        or row.converting
        or row.limit
        or row.closed_ms
        or row.kept
        or len(row.held) != 1
    ):
        return _pack_any_resource(row)
    ((mode, weight),) = row.held.items()
    return f'["{row.kind}",{quote(row.name)},{{"{mode}":{weight}}},{{}},1,0,0,{quote(row.sole)}]'


def _pack_text(row: str) -> str:
    return row or "-"  # an empty value would delete the row


PACKERS: Final[dict[type, Callable[[Any], str]]] = {
    Session: _pack_session,
    Claim: _pack_claim,
    ResourceRow: _pack_resource,
    str: _pack_text,
}


def unpack(key: str, text: str) -> Any:
    family = key[0]
    if family in "hvwdx":
        return text
    values, _ = _scan(text, 0)
    if family == "s":
        return Session(*values)
    if family == "c":
        values[2] = tuple([Place(*place) for place in values[2]])
        return Claim(*values)
    if family == "r":
        return ResourceRow(*values)
    raise AssertionError(f"a row of unknown kind: {key!r}")


def pack_event(event: Event) -> str:
    position, wall_ms, what, kind, name, mode, session, n, owner, token, detail = event
    return (
        f'[{position},{wall_ms},"{what}","{kind}",{quote(name)},"{mode}",{quote(session)},{n},'
        f"{quote(owner)},{token},{quote(detail)}]"
    )


def unpack_event(text: str) -> Event:
    return Event(*_scan(text, 0)[0])


def position_of(text: str) -> int:
    """Of an event."""
    return int(text[1 : text.index(",")])
