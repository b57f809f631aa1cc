"""The lock table's rows: a head, and a table of keys and values in a SQLite file.

What a transaction costs is what it writes. So the head carries not only the counters of the
meta but also the rows that were written last and the last entries of the log, and a step
writes the head alone; only when it is full are they moved to the table, many at a time. A
lock that is taken and given back meanwhile never gets there. There, the log is under keys
that sort last.

The log is written only while somebody looks at it, and some time after.
"""

from __future__ import annotations

import os
import time
from itertools import chain
from typing import Any, Final, NamedTuple, Protocol

from lockfast.core.commands import Event
from lockfast.core.rows import LOG_KEPT, LOG_KEPT_MS, META_KEY, Meta, Row
from lockfast.stores.sqlite.head import BODY_MAX, Damaged, Head
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
    # The last line under what was moved: which head it belongs to, and the counters then.
    "CREATE TABLE base (pair TEXT NOT NULL, boot TEXT NOT NULL, mark INTEGER NOT NULL, "
    "counters TEXT NOT NULL)",
    f"INSERT INTO base VALUES ('', '', 0, '0 0 {1 << 60} 0 0')",
)

CACHED_MAX: Final = 2000
ROWS_PER_STATEMENT: Final = 200
"""Well below the number of parameters that any SQLite allows."""
LOG_FIRST: Final = "z\x1f"
LOG_END: Final = "z\x20"

SEPARATOR: Final = "\x1e"
"""Between the keys and texts in the head; none of them contains it."""
LOG: Final = "\x1c"
"""Between the rows in the head and the log."""
NEW: Final = "\x1d"
"""Before the text of a row in the head: there is none of this key in the table."""


class Connection(Protocol):
    """As much of a SQLite library as is used here."""

    def execute(self, sql: str, parameters: Any = ..., /) -> Any: ...


class Replaced(Exception):
    """The head belongs to another table: this one was deleted, or another put in its place."""


def _log_key(position: int) -> str:
    return f"z\x1f{position:016x}"


def _replace(count: int) -> str:
    return f"REPLACE INTO rows (k, v) VALUES {', '.join(['(?, ?)'] * count)}"


def _marked(body: bytes, mark: int) -> bytes:
    """What is in a head, under another mark."""
    pair, _, rest = body.split(b" ", 2)
    return b"%b %d %b" % (pair, mark, rest)


class _Parts(NamedTuple):
    """What is in a head."""

    pair: str
    mark: int
    counters: str
    recent: list[str]
    log: str


def _split(body: bytes) -> _Parts:
    text, _, log = body.decode().partition(LOG)
    numbers, *recent = text.split(SEPARATOR)
    pair, mark, counters = numbers.split(" ", 2)
    return _Parts(pair, int(mark), counters, recent, log)


def _shard_of(counters: str) -> tuple[Meta, int]:
    """The counters, and until when the log is kept."""
    *meta, log_until_ms = map(int, counters.split(" "))
    return Meta(*meta), log_until_ms


class SqliteRows:
    """The row port over a head and a table, with what earlier steps of this process read.

    The head has a version that every step which writes raises. As long as it is the one we
    know, nobody wrote in between and what we read before still holds. The table changes only
    when the head is emptied, which is what its mark counts: what we read of the table holds
    until then, whoever writes.

    To empty the head is to write two files, and one may be killed in between. So first the
    head is given an odd mark, which says: ask the table how far we came. The transaction that
    moves the rows, together with those of the step itself, gives the table the next mark, and
    the head that is written then has the same. A head with an odd mark is void if the table
    is ahead of it, for then all is in the table; and else it stands as if nothing had been.
    """

    def __init__(self, connection: Connection, head: Head) -> None:
        self._execute = connection.execute
        self._head = head
        self._pair = ""
        self._cache: dict[str, Any] = {}
        self._version = -1
        self._body = b""
        """What is in the head."""
        self._mark = 0
        self._recent: dict[str, str] = {}
        """The texts of the rows in the head, by key; empty if they are deleted."""
        self._log = ""
        """The entries of the log in the head, each with a separator before it."""
        self._log_until_ms = 0
        self.logs = False
        self._writes: dict[str, Any] = {}
        self._added: set[str] = set()
        self._events: list[Event] = []
        self._stored: dict[str, str] = {}
        """The texts of rows in the table, by key; empty if there is none."""
        self._without: dict[str, str] = {}
        """Spans of keys without a row in the table: by their end, where they begin."""

    # ── one step ─────────────────────────────────────────────────────────────────────

    def start(self, now_ms: int) -> None:
        """Begin a step that writes, behind the gate.

        Raises Damaged or Replaced if there is nothing to begin with.
        """
        if not self._is_known():
            self._take(*self._head.read())
        if self.logs and self._log_until_ms <= now_ms and not self._cache[META_KEY].watchers:
            # Nobody has looked for long: entries from here on would not follow those there.
            self._keep_log_until(0)
            self._empty_head()

    def commit(self) -> None:
        """Write the step."""
        body = self._written()
        if len(body) > BODY_MAX:
            self._empty_head()
            body = self._body
        self._write(body)

    def look(self) -> bool:
        """Begin to read, in a transaction but not behind the gate; False: look once more.

        What is read then is the state of one instant. Raises as `start` does.
        """
        base = self._base()
        if not self._is_known():
            self._take(*self._head.read(), base)
        return base[0] == self._mark

    def _is_known(self) -> bool:
        """Whether nobody wrote since we last looked, and what we know is not too much."""
        version = self._version
        return version > 0 and len(self._cache) < CACHED_MAX and self._head.is_newest(version)

    def _base(self) -> tuple[int, str]:
        mark, counters = self._execute("SELECT mark, counters FROM base").fetchone()
        return mark, counters

    def _take(self, version: int, body: bytes, base: tuple[int, str] | None = None) -> None:
        """Go on from what is in the head now; `base` is there for those who only look."""
        pair, mark, counters, recent, log = _split(body)
        if pair != self._pair:
            raise Replaced
        if mark % 2:
            moved, counters_moved = self._base() if base is None else base
            if moved == mark + 1:
                counters, recent, log = counters_moved, [], ""
                body = f"{pair} {mark} {counters}".encode()
            if abs(moved - mark) == 1:
                mark = moved
                body = _marked(body, mark)
            elif base is None:
                raise Replaced
            if base is not None:
                version = -1  # somebody may be emptying it: what we know holds just now
        if mark != self._mark or len(self._stored) + len(self._without) > CACHED_MAX:
            self._forget_table()
        self._version = version
        self._body = body
        self._mark = mark
        self._recent = dict(zip(recent[::2], recent[1::2], strict=True))
        self._log = log
        meta, log_until_ms = _shard_of(counters)
        self._keep_log_until(log_until_ms)
        self._cache = {META_KEY: meta}

    def forget(self) -> None:
        """What we have is of no use: a step did not end as planned."""
        self._version = -1
        self._writes = {}
        self._added = set()
        self._events = []
        self._forget_table()

    def _forget_table(self) -> None:
        self._stored = {}
        self._without = {}

    # ── the head ─────────────────────────────────────────────────────────────────────

    def open(self, boot: str, now_ms: int) -> None:
        """Behind the gate: go on with what is there, or start anew.

        Nobody survives a reboot; counters and log do. If head and table are not of a pair,
        one of them was deleted or replaced: the log would have a gap then, and goes too.
        """
        self._pair, last_boot, _, counters = self._execute("SELECT * FROM base").fetchone()
        meta, log_until_ms = _shard_of(counters)
        version = 0
        try:
            version, body = self._head.read()
            self._take(version, body)
            if boot == last_boot:
                return
            meta, log_until_ms = self._cache[META_KEY], self._log_until_ms
        except Replaced:
            meta.token = max(meta.token, _shard_of(_split(body).counters)[0].token)
            log_until_ms = 0
        except Damaged:
            log_until_ms = 0
        meta.due_ms, meta.watchers = 1 << 60, 0
        self._cache = {META_KEY: meta}
        self._keep_log_until(now_ms + LOG_KEPT_MS if log_until_ms else 0)
        self._pair = os.urandom(8).hex()
        self._mark = 0
        self._recent = {}
        # No version of the head that anybody knows comes back.
        self._version = max(version, time.time_ns())
        self._execute("BEGIN IMMEDIATE")
        self._execute("DELETE FROM rows WHERE k < ?", (LOG_FIRST,))
        self._move()
        self._execute("UPDATE base SET pair = ?, boot = ?", (self._pair, boot))
        self._execute("COMMIT")
        for _ in range(2):  # both slots, so that nobody takes what is left of the old for its own
            self._write(self._written())

    def _written(self) -> bytes:
        """The head with what this step wrote."""
        recent, added = self._recent, self._added
        self._writes.pop(META_KEY, None)
        for key, row in self._writes.items():
            before = recent.get(key)
            is_new = key in added if before is None else before[:1] == NEW
            if row is not None:
                text = PACKERS[type(row)](row)
                recent[key] = NEW + text if is_new else text
            elif is_new:
                recent.pop(key, None)
            else:
                recent[key] = ""
        if self._events:
            self._log += "".join(f"{SEPARATOR}{pack_event(event)}" for event in self._events)
            self._events = []
        self._writes = {}
        self._added = set()
        meta = self._cache[META_KEY]
        numbers = (
            f"{self._pair} {self._mark} {meta.token} {meta.position} {meta.due_ms} "
            f"{meta.watchers} {self._log_until_ms}"
        )
        rows = SEPARATOR.join((numbers, *chain.from_iterable(recent.items())))
        return f"{rows}{LOG}{self._log}".encode()

    def _write(self, body: bytes) -> None:
        self._head.write(self._version + 1, body)
        self._version += 1
        self._body = body

    def _recent_log(self) -> list[str]:
        return self._log.split(SEPARATOR)[1:]

    def _empty_head(self) -> None:
        """Move what the head carries to the table. To write the head is what remains to do."""
        self._write(_marked(self._body, self._mark + 1))
        self._mark += 2
        self._execute("BEGIN IMMEDIATE")
        if self._execute("SELECT pair FROM base").fetchone()[0] != self._pair:
            raise Replaced  # it is the head that was deleted: others have another
        self._move()
        self._execute("COMMIT")

    def _move(self) -> None:
        """Inside a transaction: have all in the table, under the mark that we have now."""
        moved: list[str] = []
        for key, text in self._recent.items():
            moved += (key, text.removeprefix(NEW))
        if self.logs:
            for text in self._recent_log():
                moved += (_log_key(position_of(text)), text)
        self._recent = {}
        self._log = ""
        self._forget_table()
        for at in range(0, len(moved), 2 * ROWS_PER_STATEMENT):
            some = moved[at : at + 2 * ROWS_PER_STATEMENT]
            self._execute(_replace(len(some) // 2), some)
        end = LOG_END
        if self.logs:
            end = _log_key(max(0, self._cache[META_KEY].position - LOG_KEPT + 1))
        self._execute("DELETE FROM rows WHERE k >= ? AND k < ?", (LOG_FIRST, end))
        self._body = self._written()
        counters = _split(self._body).counters
        self._execute("UPDATE base SET mark = ?, counters = ?", (self._mark, counters))

    # ── the log ──────────────────────────────────────────────────────────────────────

    def log_ends_soon(self, now_ms: int) -> bool:
        """Whether somebody who looks at the log has to have it kept for longer."""
        return self._log_until_ms < now_ms + LOG_KEPT_MS // 2

    def keep_log(self, now_ms: int) -> None:
        """Have it written from here on."""
        self._keep_log_until(now_ms + LOG_KEPT_MS)

    def _keep_log_until(self, at_ms: int) -> None:
        """0: it is not written."""
        self._log_until_ms = at_ms
        self.logs = at_ms > 0

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
