"""The lock table's rows in one SQLite table of keys and values.

One ordered table, not one per kind of row: a small database then lies on few pages, and
pages written are what a transaction costs. Values are JSON lists, so `sqlite3` on the
command line shows them; the lines of claims are plain references. The log is in it too,
under keys that sort last.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import MISSING, fields
from json.encoder import encode_basestring as quote
from operator import attrgetter
from typing import Any, Final, Protocol

from lockfast.core.commands import Event, Place
from lockfast.core.rows import LOG_KEPT, SHARD_KEY, Claim, ResourceRow, Row, Session, Shard

SCHEMA: Final = (
    "CREATE TABLE rows (k TEXT PRIMARY KEY, v TEXT NOT NULL) WITHOUT ROWID",
    # An empty value deletes: so one statement can put and delete.
    "CREATE TRIGGER gone AFTER INSERT ON rows WHEN new.v = '' "
    "BEGIN DELETE FROM rows WHERE k = new.k; END",
)

NEW_SHARD: Final = f"0 0 0 {1 << 60} 0"
CACHED_MAX: Final = 2000
ROWS_PER_STATEMENT: Final = 200
"""Well below the number of parameters that any SQLite allows."""
LOG_PRUNED_EVERY: Final = 256
LOG_FIRST: Final = "z\x1f"
LOG_END: Final = "z\x20"


class Connection(Protocol):
    """As much of a SQLite library as is used here."""

    def execute(self, sql: str, parameters: Any = ..., /) -> Any: ...


class Stale(Exception):
    """Somebody else wrote since we last did: what we know no longer holds."""


# ── packing ──────────────────────────────────────────────────────────────────────────

encode = json.JSONEncoder(ensure_ascii=False, check_circular=False, separators=(",", ":")).encode
decode = json.JSONDecoder().decode


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


_packers: Final[dict[type, Callable[[Any], str]]] = {
    kind: _packer(kind) for kind in (Session, Claim, ResourceRow)
}


def _pack_session(row: Session) -> str:
    if row.watching or row.ended:
        return _packers[Session](row)
    return (
        f'["{row.id}",{row.ttl_ms},{quote(row.owner)},{quote(row.metadata)},{quote(row.inbox)},'
        f"{quote(row.process)},{row.opened_ms},{row.deadline_ms},{row.renewals},{row.highest},"
        f'"{row.unseen}",{row.claims},{row.checksum}]'
    )


def _pack_claim(row: Claim) -> str:
    if (
        len(row.places) != 1
        or row.until_ms
        or row.max_hold_ms
        or row.lock_delay_ms
        or row.block != 1
        or row.value is not None
        or row.passed
        or row.step
        or row.wants
        or row.reason
        or row.window_ms
    ):
        return _packers[Claim](row)
    kind, name, mode, weight, limit = row.places[0]
    return (
        f'["{row.session}",{row.n},[["{kind}",{quote(name)},"{mode}",{weight},{limit}]],'
        f'"{row.state}","{row.rank}",{quote(row.actor)},{row.priority},{row.entered_ms},'
        f"{row.token},{row.granted_ms}]"
    )


def pack(row: Row) -> str:
    """The text of a row. The two that every step writes are written out, the rest not."""
    if isinstance(row, Session):
        return _pack_session(row)
    if isinstance(row, Claim):
        return _pack_claim(row)
    if isinstance(row, str):
        return row or "-"  # an empty value would delete the row
    return _packers[type(row)](row)


def pack_event(event: Event) -> str:
    """`encode(event[1:])`, written out: it is done for every step."""
    _, wall_ms, what, kind, name, mode, session, n, owner, token, detail = event
    return (
        f'[{wall_ms},"{what}","{kind}",{quote(name)},"{mode}","{session}",{n},'
        f"{quote(owner)},{token},{quote(detail)}]"
    )


def unpack(key: str, text: str) -> Any:
    family = key[0]
    if family in "hvwdx":
        return text
    values = decode(text)
    if family == "s":
        return Session(*values)
    if family == "c":
        values[2] = tuple([Place(*place) for place in values[2]])
        return Claim(*values)
    if family == "r":
        return ResourceRow(*values)
    raise AssertionError(f"a row of unknown kind: {key!r}")


def _log_key(position: int) -> str:
    return f"z\x1f{position:016x}"


# ── statements ───────────────────────────────────────────────────────────────────────


def _statements(sql: Callable[[str], str]) -> Callable[[int], str]:
    made: dict[int, str] = {}

    def statement(count: int) -> str:
        found = made.get(count)
        if found is None:
            found = made[count] = sql(", ".join(["(?, ?)"] * count))
        return found

    return statement


_replace: Final = _statements(lambda rows: f"REPLACE INTO rows (k, v) VALUES {rows}")
_replace_if_unchanged: Final = _statements(
    lambda rows: (
        f"REPLACE INTO rows (k, v) SELECT column1, column2 FROM (VALUES {rows}) "
        "WHERE (SELECT v FROM rows WHERE k = 'm') = ?"
    )
)


class SqliteRows:
    """The row port over a connection, with what earlier steps of this process read.

    The shard's row carries a version that every step which writes raises. As long as it is
    the one we wrote, nobody else wrote in between and what we read before still holds. So
    a step that reads no line needs no transaction of several statements: it is worked out
    on what we know, and written in one statement on condition that the version is ours.
    """

    def __init__(self, connection: Connection, changes: Callable[[Any, Any], int]) -> None:
        self._connection = connection
        self._changes = changes
        self._execute = connection.execute
        self._cache: dict[str, Any] = {}
        self._shard_text = ""
        self._version = -1
        self._writes: dict[str, Any] = {}
        self._events: list[Event] = []
        self._prune_at = 0
        self.guessing = False
        """Whether this step is worked out on what we know, and not yet in a transaction."""

    # ── one step ─────────────────────────────────────────────────────────────────────

    def start(self) -> None:
        """Begin a step that writes: on what we know, else in a transaction."""
        self.guessing = bool(self._shard_text) and len(self._cache) < CACHED_MAX
        if not self.guessing:
            self._execute("BEGIN IMMEDIATE")
            self.refresh()

    def commit(self) -> None:
        """Write the step. Raises Stale if it was worked out on what no longer holds."""
        before = self._shard_text
        values = self._written()
        if self.guessing:
            if len(values) <= 2 * ROWS_PER_STATEMENT:
                statement = _replace_if_unchanged(len(values) // 2)
                values.append(before)
                cursor = self._execute(statement, values)
                if not self._changes(self._connection, cursor):
                    raise Stale
                return
            self._begin(before)
        for at in range(0, len(values), 2 * ROWS_PER_STATEMENT):
            some = values[at : at + 2 * ROWS_PER_STATEMENT]
            self._execute(_replace(len(some) // 2), some)
        self._execute("COMMIT")

    def refresh(self) -> None:
        """Inside a transaction: drop what we know if somebody else wrote since."""
        self.guessing = False
        found = self._execute("SELECT v FROM rows WHERE k = 'm'").fetchone()
        text = found[0] if found is not None else NEW_SHARD
        if text != self._shard_text or len(self._cache) >= CACHED_MAX:
            self._shard_text = text
            self._version, *values = map(int, text.split())
            self._cache = {SHARD_KEY: Shard(*values)}

    def _begin(self, expected: str) -> None:
        """Go on in a transaction, if what we know still holds."""
        self._execute("BEGIN IMMEDIATE")
        found = self._execute("SELECT v FROM rows WHERE k = 'm'").fetchone()
        if found is None or found[0] != expected:
            raise Stale
        self.guessing = False

    def forget(self) -> None:
        """What we have is of no use: a step did not end as planned."""
        self._cache = {}
        self._shard_text = ""
        self._writes = {}
        self._events = []
        self.guessing = False

    def _written(self) -> list[str]:
        """Keys and values to write for this step, the shard's among them."""
        shard = self._cache[SHARD_KEY]
        self._version += 1
        self._shard_text = text = (
            f"{self._version} {shard.token} {shard.position} {shard.due_ms} {shard.watchers}"
        )
        writes = self._writes
        writes.pop(SHARD_KEY, None)
        values = [SHARD_KEY, text]
        for key, row in writes.items():
            values.append(key)
            values.append("" if row is None else pack(row))
        self._writes = {}
        if self._events:
            for event in self._events:
                values.append(_log_key(event.position))
                values.append(pack_event(event))
            self._events = []
        return values

    def prune_log(self) -> None:
        """Drop what is too old; now and then, behind a step that wrote."""
        shard: Shard | None = self._cache.get(SHARD_KEY)
        # A step may write several entries: what counts is how far the log has come since.
        if shard is not None and shard.position >= self._prune_at:
            self._prune_at = shard.position + LOG_PRUNED_EVERY
            end = _log_key(shard.position - LOG_KEPT + 1)
            if shard.position > LOG_KEPT:
                self._execute("DELETE FROM rows WHERE k >= ? AND k < ?", (LOG_FIRST, end))

    # ── the port ─────────────────────────────────────────────────────────────────────

    def get(self, key: str) -> Any:
        cache = self._cache
        if key in cache:
            return cache[key]
        found = self._execute("SELECT v FROM rows WHERE k = ?", (key,)).fetchone()
        row = cache[key] = None if found is None else unpack(key, found[0])
        return row

    def put(self, key: str, row: Row) -> None:
        self._cache[key] = self._writes[key] = row

    def delete(self, key: str) -> None:
        self._cache[key] = self._writes[key] = None

    def scan(
        self, start: str, stop: str, limit: int, reverse: bool = False
    ) -> list[tuple[str, Any]]:
        if self.guessing:
            self._begin(self._shard_text)
        self._flush()
        order = "DESC" if reverse else "ASC"
        found = self._execute(
            f"SELECT k, v FROM rows WHERE k >= ? AND k < ? ORDER BY k {order} LIMIT ?",
            (start, stop, limit),
        ).fetchall()
        cache = self._cache
        rows = []
        for key, text in found:
            row = cache.get(key)
            if row is None:
                row = cache[key] = unpack(key, text)
            rows.append((key, row))
        return rows

    def append(self, event: Event) -> None:
        self._events.append(event)

    def events(self, after: int, limit: int) -> list[Event]:
        found = self._execute(
            "SELECT k, v FROM rows WHERE k > ? AND k < ? ORDER BY k LIMIT ?",
            (_log_key(after), LOG_END, limit),
        ).fetchall()
        return [Event(int(key[2:], 16), *decode(text)) for key, text in found]

    def oldest(self) -> int | None:
        found = self._execute(
            "SELECT min(k) FROM rows WHERE k >= ? AND k < ?", (LOG_FIRST, LOG_END)
        ).fetchone()
        return None if found[0] is None else int(found[0][2:], 16)

    def _flush(self) -> None:
        """Write out what was put and deleted so far, so that a scan sees it."""
        writes = self._writes
        writes.pop(SHARD_KEY, None)
        if not writes:
            return
        items = list(writes.items())
        self._writes = {}
        for at in range(0, len(items), ROWS_PER_STATEMENT):
            values: list[str] = []
            for key, row in items[at : at + ROWS_PER_STATEMENT]:
                values.append(key)
                values.append("" if row is None else pack(row))
            self._execute(_replace(len(values) // 2), values)
