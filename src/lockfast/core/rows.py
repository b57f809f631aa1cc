"""What the lock table stores: a few kinds of rows in one ordered space of keys.

A key is text whose parts are joined by a separator that no name can contain, so rows
of one line sort together and in order:

    m                              the meta: last token, log position, next due instant
    s ␟ session                    a session
    c ␟ session ␟ n                a claim
    r ␟ kind ␟ name                a resource in use
    h ␟ kind ␟ name ␟ rank         its holders, when there is more than one
    v ␟ kind ␟ name ␟ rank         claims that could hold it now but lack another place
    w ␟ kind ␟ name ␟ rank         claims waiting for it, in order
    d ␟ instant ␟ session ␟ n      what ends by itself, and when (n is 0: the session)
    d ␟ instant ␟ ␟ kind ␟ name    when a closed resource opens
    x ␟ session                    sessions that watch the log

Beside them there is the log, a bounded list of events by position.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields
from operator import attrgetter
from typing import Any, Final, Protocol, TypeAlias

from lockfast.core.commands import Event, Place

SEPARATOR = "\x1f"
AFTER_SEPARATOR = "\x20"
"""Sorts behind every key that begins with a prefix ending in the separator."""

META_KEY = "m"
SESSION_PREFIX = f"s{SEPARATOR}"
DUE_PREFIX = f"d{SEPARATOR}"
WATCHER_PREFIX = f"x{SEPARATOR}"

_RANK_OFFSET = 1 << 62
"""Keeps ranks positive, so that as text they sort as numbers do."""


@dataclass(slots=True)
class Meta:
    token: int = 0
    position: int = 0
    due_ms: int = 0
    """Nothing ends by itself before this instant (it may be too early, never too late)."""
    watchers: int = 0


@dataclass(slots=True)
class Session:
    id: str
    ttl_ms: int
    owner: str
    metadata: str
    inbox: str
    process: str
    opened_ms: int
    deadline_ms: int
    """Of an ended one: when it is forgotten."""
    renewals: int = 0
    highest: int = 0
    """The highest claim number seen."""
    unseen: str = ""
    """Ranges of lower numbers that have not been seen: "3-5,9-9,"."""
    claims: int = 0
    checksum: int = 0
    watching: bool = False
    ended: str = ""
    by: str = ""
    ending: str = ""
    """While an ended session has claims left: the event its claims are logged as."""


@dataclass(slots=True)
class Claim:
    session: str
    n: int
    places: tuple[Place, ...]
    state: str
    rank: str
    actor: str
    priority: int
    entered_ms: int
    token: int = 0
    granted_ms: int = 0
    until_ms: int = 0
    """The end of max_hold once granted; 0: none."""
    max_hold_ms: int = 0
    lock_delay_ms: int = 0
    block: int = 1
    value: str | None = None
    passed: int = 0
    """Bit i: could hold place i now, and keeps it reserved."""
    step: int = 0
    wants: str = ""
    """The mode it is converting to."""
    reason: str = ""
    by: str = ""
    window_ms: int = 0


@dataclass(slots=True)
class ResourceRow:
    kind: str
    name: str
    held: dict[str, int] = field(default_factory=dict)
    """Per mode, how many hold it; of permits, their weights."""
    reserved: dict[str, int] = field(default_factory=dict)
    holders: int = 0
    waiting: int = 0
    reservations: int = 0
    sole: str = ""
    """The only holder, kept here so that the common case needs no row for it."""
    converting: str = ""
    limit: int = 0
    closed_ms: int = 0
    """Nothing is granted before this instant."""
    kept: int = 0
    """How many holders keep it for their next use, and want to be told of others."""


Row: TypeAlias = Meta | Session | Claim | ResourceRow | str

_values_of: Final[dict[type, Callable[[Any], tuple[Any, ...]]]] = {
    kind: attrgetter(*(field.name for field in fields(kind)))
    for kind in (Meta, Session, Claim, ResourceRow)
}


def copied(row: Any) -> Any:
    """A row that stays as it is now; what is not a row of ours does so anyway."""
    values_of = _values_of.get(type(row))
    if values_of is None:
        return row
    other = type(row)(*values_of(row))
    if isinstance(row, ResourceRow):
        other.held, other.reserved = dict(row.held), dict(row.reserved)
    return other


LOG_KEPT = 10_000
"""How many entries of the log are kept at the least."""
LOG_KEPT_MS = 600_000
"""A log that is written only while somebody looks is kept this long, counted anew from a look
when half of it is over: whoever comes back within that half has missed nothing."""


class Rows(Protocol):
    """Where the table keeps its rows: get, put, delete by key, and scan in key order.

    What `get` returns may be changed and put back; nothing else may keep it.
    """

    @property
    def logs(self) -> bool:
        """Whether there is a log at present: else positions are counted, and nothing is added."""
        ...

    def get(self, key: str) -> Any: ...
    def put(self, key: str, row: Row) -> None: ...
    def add(self, key: str, row: Row) -> None:
        """As put, for a key that has no row."""
        ...

    def delete(self, key: str) -> None: ...
    def scan(
        self, start: str, stop: str, limit: int, reverse: bool = False
    ) -> list[tuple[str, Any]]:
        """Rows with start <= key < stop, in order (or from the end)."""
        ...

    def append(self, event: Event) -> None:
        """Add to the log, whose positions rise by one; what is too old falls out of it."""
        ...

    def events(self, after: int, limit: int) -> list[Event]:
        """Entries of the log behind a position, in order."""
        ...

    def oldest(self) -> int | None:
        """The position of the oldest entry kept."""
        ...


def session_key(session: str) -> str:
    return f"s\x1f{session}"


def claim_key(session: str, n: int) -> str:
    # As {n:016x}, in a third of the time.
    return f"c\x1f{session}\x1f{n.to_bytes(8).hex()}"


def claims_prefix(session: str) -> str:
    return f"c\x1f{session}\x1f"


def resource_key(kind: str, name: str) -> str:
    return f"r\x1f{kind}\x1f{name}"


def line_prefix(line: str, kind: str, name: str) -> str:
    return f"{line}\x1f{kind}\x1f{name}\x1f"


def due_key(at_ms: int, session: str, n: int = 0) -> str:
    return f"d\x1f{at_ms.to_bytes(8).hex()}\x1f{session}\x1f{n.to_bytes(8).hex()}"


def opening_key(at_ms: int, kind: str, name: str) -> str:
    return f"d\x1f{at_ms:016x}\x1f\x1f{kind}\x1f{name}"


def due_at_ms(key: str) -> int:
    return int(key.split(SEPARATOR, 2)[1], 16)


def rank_of(key_ms: int, arrival: int) -> str:
    """The static order of a claim: its head start, then its arrival."""
    return (key_ms + _RANK_OFFSET).to_bytes(8).hex() + arrival.to_bytes(8).hex()


def claim_ref(session: str, n: int) -> str:
    return f"{session}\x1f{n}"


def parse_ref(ref: str) -> tuple[str, int]:
    session, n = ref.split(SEPARATOR)
    return session, int(n)


def after_prefix(prefix: str) -> str:
    """The first key behind all those that begin with `prefix` (which ends in ␟)."""
    return prefix[:-1] + AFTER_SEPARATOR
