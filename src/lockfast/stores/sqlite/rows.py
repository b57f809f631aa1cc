"""The lock table's rows in a SQLite file: a head, and a table of keys and values.

What a transaction costs is the pages it writes. So the head, one row on a page of its own,
carries not only the counters of the shard but also the rows that were written last and the
last entries of the log; only when it is full are they moved to the table, many at a time. A
lock that is taken and given back meanwhile never gets there. There, the log is under keys
that sort last.

The log is written only while somebody looks at it, and some time after.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain
from typing import Any, Final, Protocol

from lockfast.core.commands import Event
from lockfast.core.rows import LOG_KEPT, LOG_KEPT_MS, SHARD_KEY, Row, Shard
from lockfast.stores.sqlite.packing import (
    PACKERS,
    pack_event,
    position_of,
    unpack,
    unpack_event,
)

SCHEMA: Final = (
    "CREATE TABLE rows (k TEXT PRIMARY KEY, v TEXT NOT NULL) WITHOUT ROWID",
    # An empty value deletes: so one statement can put and delete.
    "CREATE TRIGGER gone AFTER INSERT ON rows WHEN new.v = '' "
    "BEGIN DELETE FROM rows WHERE k = new.k; END",
    "CREATE TABLE head (version INTEGER NOT NULL, boot TEXT NOT NULL, v TEXT NOT NULL, "
    "log TEXT NOT NULL)",
    f"INSERT INTO head VALUES (0, '', '0 0 {1 << 60} 0 0 0', '')",
)

_UPDATE: Final = "UPDATE head SET version = ?, v = ?, log = ? WHERE version = ?"
_HEAD: Final = "SELECT version, v, log FROM head"

HEAD_MAX: Final = 3500
"""What fits on the head's page, with something to spare for names that are not ASCII."""
CACHED_MAX: Final = 2000
CALM: Final = 8
"""So many looks in a row at which nobody else had written: now we do without."""
ROWS_PER_STATEMENT: Final = 200
"""Well below the number of parameters that any SQLite allows."""
LOG_FIRST: Final = "z\x1f"
LOG_END: Final = "z\x20"

SEPARATOR: Final = "\x1e"
"""Between the keys and texts in the head; none of them contains it."""
NEW: Final = "\x1d"
"""Before the text of a row in the head: there is none of this key in the table."""


class Connection(Protocol):
    """As much of a SQLite library as is used here."""

    def execute(self, sql: str, parameters: Any = ..., /) -> Any: ...


class Stale(Exception):
    """Somebody else wrote since we last did: what we know no longer holds."""


def _log_key(position: int) -> str:
    return f"z\x1f{position:016x}"


def _replace(count: int) -> str:
    return f"REPLACE INTO rows (k, v) VALUES {', '.join(['(?, ?)'] * count)}"


class SqliteRows:
    """The row port over a connection, with what earlier steps of this process read.

    The head has a version that every step which writes raises. As long as it is the one we
    know, nobody wrote in between and what we read before still holds. So a step needs no
    transaction of several statements: it is worked out on what we know, and written in one
    statement on condition that the version is still the same. The table changes only when the
    head is emptied, which is counted: what we read of it holds until then, whoever writes.
    """

    def __init__(self, connection: Connection, changes: Callable[[Any, Any], int]) -> None:
        self._connection = connection
        self._changes = changes
        self._execute = connection.execute
        self._cache: dict[str, Any] = {}
        self._version = -1
        self._recent: dict[str, str] = {}
        """The texts of the rows in the head, by key; empty if they are deleted."""
        self._log = ""
        """The entries of the log in the head, each with a separator before it."""
        self._log_until_ms = 0
        """0: the log is not written."""
        self._writes: dict[str, Any] = {}
        self._added: set[str] = set()
        self._events: list[Event] = []
        self._calm = 0
        """How often in a row we looked and nobody else had written since we did."""
        self._emptied = -1
        """How often the head has been emptied."""
        self._stored: dict[str, str] = {}
        """The texts of rows in the table, by key; empty if there is none."""
        self._without: dict[str, str] = {}
        """Spans of keys without a row in the table: by their end, where they begin."""
        self.guessing = False
        """Whether this step is worked out on what we know, and not in a transaction."""

    # ── one step ─────────────────────────────────────────────────────────────────────

    def start(self, now_ms: int, *, guess: bool) -> None:
        """Begin a step that writes: on what we know if it may be a `guess`."""
        self.guessing = guess
        if not guess:
            self._execute("BEGIN IMMEDIATE")
        if not (guess and self._calm >= CALM and len(self._cache) < CACHED_MAX):
            self.refresh()
        if self.logs and self._log_until_ms <= now_ms and not self._cache[SHARD_KEY].watchers:
            self._drop_log()

    def commit(self) -> None:
        """Write the step. Raises Stale if it was worked out on what no longer holds."""
        text = self._written()
        if len(text) + len(self._log) > HEAD_MAX:
            self._begin()
            self._empty_head()
            text = self._written()
        version = self._version
        cursor = self._execute(_UPDATE, (version + 1, text, self._log, version))
        if not self._changes(self._connection, cursor):
            raise Stale
        if not self.guessing:
            self._execute("COMMIT")
        self._version = version + 1

    def refresh(self) -> None:
        """Drop what we know if somebody else wrote since."""
        version, text, log = self._execute(_HEAD).fetchone()
        self._calm = self._calm + 1 if version == self._version else 0
        if self._calm and len(self._cache) < CACHED_MAX:
            return
        self._log = log
        counters, *recent = text.split(SEPARATOR)
        *shard, self._log_until_ms, emptied = map(int, counters.split())
        if emptied != self._emptied or len(self._stored) + len(self._without) > CACHED_MAX:
            self._forget_table()
            self._emptied = emptied
        self._version = version
        self._recent = dict(zip(recent[::2], recent[1::2], strict=True))
        self._cache = {SHARD_KEY: Shard(*shard)}

    def _begin(self) -> None:
        """Go on in a transaction, if what we know still holds."""
        if self.guessing:
            self._execute("BEGIN IMMEDIATE")
            if self._execute(_HEAD).fetchone()[0] != self._version:
                raise Stale
            self.guessing = False

    def forget(self) -> None:
        """What we have is of no use: a step did not end as planned."""
        self._cache = {}
        self._version = -1
        self._recent = {}
        self._log = ""
        self._writes = {}
        self._added = set()
        self._events = []
        self._calm = 0
        self._emptied = -1
        self._forget_table()
        self.guessing = False

    def _forget_table(self) -> None:
        self._stored = {}
        self._without = {}

    def start_anew(self, boot: str, now_ms: int) -> None:
        """Inside a transaction: nobody survives a reboot. Only counters and log do."""
        self.refresh()
        shard: Shard = self._cache[SHARD_KEY]
        shard.due_ms, shard.watchers = 1 << 60, 0
        if self.logs:
            self.keep_log(now_ms)
        self._recent = {}
        self._emptied += 1
        self._execute("DELETE FROM rows WHERE k < ?", (LOG_FIRST,))
        self._execute(
            "UPDATE head SET version = version + 1, boot = ?, v = ?", (boot, self._written())
        )
        self.forget()

    # ── the head ─────────────────────────────────────────────────────────────────────

    def _written(self) -> str:
        """The head with what this step wrote."""
        recent = self._recent
        for key, row in self._writes.items():
            if key == SHARD_KEY:
                continue
            before = recent.get(key)
            is_new = key in self._added if before is None else before[:1] == NEW
            if row is not None:
                text = PACKERS[type(row)](row)
                recent[key] = NEW + text if is_new else text
            elif is_new:
                recent.pop(key, None)
            else:
                recent[key] = ""
        for event in self._events:
            self._log += f"\x1e{pack_event(event)}"
        self._writes = {}
        self._added = set()
        self._events = []
        shard = self._cache[SHARD_KEY]
        counters = (
            f"{shard.token} {shard.position} {shard.due_ms} {shard.watchers} "
            f"{self._log_until_ms} {self._emptied}"
        )
        return SEPARATOR.join((counters, *chain.from_iterable(recent.items())))

    def _recent_log(self) -> list[str]:
        return self._log.split(SEPARATOR)[1:]

    def _empty_head(self) -> None:
        """Inside a transaction: move the rows in the head to the table."""
        values: list[str] = []
        for key, text in self._recent.items():
            values += (key, text.removeprefix(NEW))
        for text in self._recent_log():
            values += (_log_key(position_of(text)), text)
        self._recent = {}
        self._log = ""
        self._emptied += 1
        self._forget_table()
        for at in range(0, len(values), 2 * ROWS_PER_STATEMENT):
            some = values[at : at + 2 * ROWS_PER_STATEMENT]
            self._execute(_replace(len(some) // 2), some)
        end = self._cache[SHARD_KEY].position - LOG_KEPT + 1
        if end > 0:
            self._execute("DELETE FROM rows WHERE k >= ? AND k < ?", (LOG_FIRST, _log_key(end)))

    # ── the log ──────────────────────────────────────────────────────────────────────

    @property
    def logs(self) -> bool:
        return self._log_until_ms > 0

    def log_ends_soon(self, now_ms: int) -> bool:
        """Whether somebody who looks at the log has to have it kept for longer."""
        return self._log_until_ms < now_ms + LOG_KEPT_MS // 2

    def keep_log(self, now_ms: int) -> None:
        """Have it written from here on."""
        self._log_until_ms = now_ms + LOG_KEPT_MS

    def _drop_log(self) -> None:
        """Nobody has looked for long: entries from here on would not follow those there."""
        self._begin()
        self._execute("DELETE FROM rows WHERE k >= ? AND k < ?", (LOG_FIRST, LOG_END))
        self._log = ""
        self._log_until_ms = 0

    # ── the port ─────────────────────────────────────────────────────────────────────

    def get(self, key: str) -> Any:
        try:
            return self._cache[key]
        except KeyError:
            return self._fetch(key)

    def _fetch(self, key: str) -> Any:
        text = self._recent.get(key)
        if text is None:
            text = self._stored.get(key)
        if text is None:
            found = self._execute("SELECT v FROM rows WHERE k = ?", (key,)).fetchone()
            text = self._stored[key] = "" if found is None else found[0]
        row = self._cache[key] = unpack(key, text.removeprefix(NEW)) if text else None
        return row

    def put(self, key: str, row: Row) -> None:
        self._cache[key] = self._writes[key] = row

    def add(self, key: str, row: Row) -> None:
        if key not in self._writes:
            self._added.add(key)
        self._cache[key] = self._writes[key] = row

    def delete(self, key: str) -> None:
        self._cache[key] = self._writes[key] = None

    def scan(
        self, start: str, stop: str, limit: int, reverse: bool = False
    ) -> list[tuple[str, Any]]:
        # Rows that are not in the table yet, or not any more.
        recent = {key: text for key, text in self._recent.items() if start <= key < stop}
        recent.update({key: "" for key in self._writes if start <= key < stop})
        found: list[tuple[str, str]] = []
        without = self._without.get(stop)
        if without is None or start < without:
            order = "DESC" if reverse else "ASC"
            found = self._execute(
                f"SELECT k, v FROM rows WHERE k >= ? AND k < ? ORDER BY k {order} LIMIT ?",
                (start, stop, limit + len(recent)),
            ).fetchall()
            if limit and not found:
                self._without[stop] = start
        if recent:
            found = sorted({**dict(found), **recent}.items(), reverse=reverse)
        cache = self._cache
        rows: list[tuple[str, Any]] = []
        for key, text in found:
            if key not in cache:
                cache[key] = unpack(key, text.removeprefix(NEW)) if text else None
            if cache[key] is not None:
                rows.append((key, cache[key]))
                if len(rows) == limit:
                    break
        return rows

    def append(self, event: Event) -> None:
        self._events.append(event)

    def events(self, after: int, limit: int) -> list[Event]:
        found = self._execute(
            "SELECT v FROM rows WHERE k > ? AND k < ? ORDER BY k LIMIT ?",
            (_log_key(after), LOG_END, limit),
        ).fetchall()
        texts = [text for (text,) in found]
        texts += [text for text in self._recent_log() if position_of(text) > after]
        return [unpack_event(text) for text in texts[:limit]]

    def oldest(self) -> int | None:
        found = self._execute(
            "SELECT v FROM rows WHERE k >= ? AND k < ? ORDER BY k LIMIT 1", (LOG_FIRST, LOG_END)
        ).fetchone()
        if found is None:
            found = self._recent_log()
        return position_of(found[0]) if found else None
