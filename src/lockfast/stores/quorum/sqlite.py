"""A node in a SQLite file: the rules of node.py, each request in one transaction.

Processes of one machine may share the file. A committed transaction survives the death of any
process, so a node keeps its ballots and needs no silence when one is killed. It is not synced to
the disk: a reboot, by which all clients of the file have died, may lose it. So a new boot id, like
a file that does not exist, makes a node that has forgotten everything: it accepts only ballots
above all that it can have accepted before, and nothing for `silence_ms` if that is given.

A row is stored as JSON. It is read when the rules use it, and written if they changed it. Nothing
else is kept between two transactions. A sweep, once a second at most, reads all rows, and a
session's row lists all its claims: this node is made for thousands of locks, not for a hundred
thousand.
"""

from __future__ import annotations

import json
import os
import secrets
import sqlite3
import threading
from collections.abc import Callable, Iterator, MutableMapping
from pathlib import Path
from typing import Any, Final, Generic, TypeVar

from lockfast.core.commands import Open
from lockfast.errors import OutcomeUnknownError, StoreError, StoreUnavailableError
from lockfast.runtimes.platform import boot_id
from lockfast.stores.memory import wall_us
from lockfast.stores.private_files import open_private
from lockfast.stores.quorum.messages import Answer, FreeWake, NoAnswer, Request
from lockfast.stores.quorum.node import LockRow, Node, SessionRow, Waiting
from lockfast.stores.sqlite import driver, filesystem

BUSY_S: Final = 0.25
"""How long a request waits for the transaction of another process; then the node counts as
unreachable, and the flight goes on with the next node."""
SEPARATOR: Final = "\x1f"
_SCHEMA: Final = (
    "CREATE TABLE IF NOT EXISTS node "
    "(boot TEXT NOT NULL, floor INTEGER NOT NULL, silent_until_ms INTEGER NOT NULL)",
    "CREATE TABLE IF NOT EXISTS identity (id TEXT NOT NULL)",
    "CREATE TABLE IF NOT EXISTS locks (key TEXT PRIMARY KEY, row TEXT NOT NULL) WITHOUT ROWID",
    "CREATE TABLE IF NOT EXISTS sessions (key TEXT PRIMARY KEY, row TEXT NOT NULL) WITHOUT ROWID",
    "CREATE TABLE IF NOT EXISTS ballots (key TEXT PRIMARY KEY, row TEXT NOT NULL) WITHOUT ROWID",
)

_inherited: Final[list[sqlite3.Connection]] = []
"""Connections inherited from a parent process: neither used nor closed here."""

K = TypeVar("K")
V = TypeVar("V")
T = TypeVar("T")


class Rows(MutableMapping[K, V], Generic[K, V]):
    """The rows of one table within a transaction."""

    def __init__(
        self,
        table: str,
        keys: tuple[Callable[[K], str], Callable[[str], K]],
        rows: tuple[Callable[[V], Any], Callable[[Any], V]],
    ) -> None:
        self._table = table
        self._key_to, self._key_from = keys
        self._row_to, self._row_from = rows
        self._connection: sqlite3.Connection | None = None
        self._used: dict[str, V | None] = {}
        """Rows that were read or set in this transaction; None: there is no such row."""
        self._stored: dict[str, str | None] = {}
        """The text of the same rows in the database."""

    def begin(self, connection: sqlite3.Connection) -> None:
        self._connection, self._used, self._stored = connection, {}, {}

    def write(self) -> None:
        """Write the rows that changed."""
        for key, row in self._used.items():
            text = None if row is None else json.dumps(self._row_to(row), separators=(",", ":"))
            if text == self._stored[key]:
                continue
            if text is None:
                self._execute(f"DELETE FROM {self._table} WHERE key = ?", key)
            else:
                self._execute(f"INSERT OR REPLACE INTO {self._table} VALUES (?, ?)", key, text)

    def _execute(self, sql: str, *arguments: str) -> sqlite3.Cursor:
        assert self._connection is not None
        return self._connection.execute(sql, arguments)

    def _load(self, key: str) -> V | None:
        if key not in self._used:
            found = self._execute(f"SELECT row FROM {self._table} WHERE key = ?", key).fetchone()
            self._add(key, None if found is None else found[0])
        return self._used[key]

    def _add(self, key: str, text: str | None) -> None:
        self._stored[key] = text
        self._used[key] = None if text is None else self._row_from(json.loads(text))

    def __getitem__(self, key: K) -> V:
        row = self._load(self._key_to(key))
        if row is None:
            raise KeyError(key)
        return row

    def __setitem__(self, key: K, row: V) -> None:
        text = self._key_to(key)
        self._load(text)
        self._used[text] = row

    def __delitem__(self, key: K) -> None:
        text = self._key_to(key)
        if self._load(text) is None:
            raise KeyError(key)
        self._used[text] = None

    def __iter__(self) -> Iterator[K]:
        for key, text in self._execute(f"SELECT key, row FROM {self._table}").fetchall():
            if key not in self._used:
                self._add(key, text)
        return iter([self._key_from(key) for key, row in self._used.items() if row is not None])

    def __len__(self) -> int:
        return len(list(iter(self)))


class SqliteNode:
    """One node in one file; the clients of a process share it."""

    def __init__(
        self, path: Path, label: str, skew_us: int, silence_ms: int, idle_ms: int = 0
    ) -> None:
        """`idle_ms`: for how long no process can have used the file. If it turns out to be new,
        what it may have granted before it was lost is that old, and its silence is shorter.
        """
        filesystem.prepare(path, label)
        filesystem.check_files(path, label)
        self._path = path
        self._label = label
        self._skew_us = skew_us
        self._silence_ms = silence_ms
        self._idle_ms = idle_ms
        sessions = Rows("sessions", (str, str), (_session_to, _session_from))
        locks = Rows("locks", (SEPARATOR.join, _lock_key), (_lock_to, _lock_from))
        ballots = Rows("ballots", (str, int), (SEPARATOR.join, _lock_key))
        self._node = Node(skew_us, locks, sessions, ballots)
        self._tables: tuple[Rows[Any, Any], ...] = (sessions, locks, ballots)
        self._connection: sqlite3.Connection | None = None
        self._start()

    def _start(self) -> None:
        self._process = os.getpid()
        if self._connection is not None:
            _inherited.append(self._connection)
        self._connection = None
        self._file: tuple[int, int] | None = None
        # Re-entrant, so that a signal handler during a request gets an error instead of hanging.
        self._mutex = threading.RLock()
        self._inside = False

    def apply(self, request: Request) -> tuple[Answer | NoAnswer, list[FreeWake]]:
        done = self._run(lambda connection: self._step(connection, request))
        return (done, []) if isinstance(done, NoAnswer) else done

    def owner_of(self, session: str) -> str | NoAnswer | None:
        """Return the owner label of a session, also of an ended one; None if it is unknown."""

        def read(connection: sqlite3.Connection) -> str | None:
            found = connection.execute("SELECT row FROM sessions WHERE key = ?", (session,))
            row = found.fetchone()
            return None if row is None else _session_from(json.loads(row[0])).open.owner

        return self._run(read)

    def identity(self) -> tuple[str, int] | NoAnswer:
        """Return the id of the file, and for how many milliseconds it will not grant anything."""

        def read(connection: sqlite3.Connection) -> tuple[str, int]:
            found = connection.execute("SELECT id, silent_until_ms FROM identity, node").fetchone()
            return found[0], max(0, found[1] - wall_us() // 1000)

        return self._run(read)

    def _run(self, step: Callable[[sqlite3.Connection], T]) -> T | NoAnswer:
        """Run one step on the connection, alone."""
        if self._process != os.getpid():
            self._start()
        with self._mutex:
            if self._inside:
                error: StoreError = StoreUnavailableError(
                    self._label,
                    "called from a signal handler that interrupted a request",
                    "call it after the handler has returned",
                )
                return NoAnswer(error)
            self._inside = True
            try:
                return step(self._connected())
            except sqlite3.Error as cause:
                code = getattr(cause, "sqlite_errorcode", 0) or 0
                error = driver.translate(code, str(cause), self._label)
            except StoreError as cause:
                error = cause
            except OSError as cause:
                error = filesystem.translate(cause, self._path, self._label)
            except (ValueError, TypeError) as cause:
                error = driver.damaged(self._label, f"unreadable row: {cause}")
            finally:
                self._inside = False
            self._disconnect()
            return NoAnswer(error, maybe=isinstance(error, OutcomeUnknownError))

    def _step(
        self, connection: sqlite3.Connection, request: Request
    ) -> tuple[Answer, list[FreeWake]]:
        connection.execute("BEGIN IMMEDIATE")
        try:
            now_us = wall_us()
            node = self._node
            _, floor, silent_until_ms = connection.execute("SELECT * FROM node").fetchone()
            node.floor, node.silent_until_ms = floor, silent_until_ms
            for rows in self._tables:
                rows.begin(connection)
            done = node.apply(request, now_us // 1000, now_us)
            for rows in self._tables:
                rows.write()
            if node.floor != floor:
                connection.execute("UPDATE node SET floor = ?", (node.floor,))
            connection.execute("COMMIT")
            return done
        except BaseException:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise

    def _connected(self) -> sqlite3.Connection:
        """Return the connection; open it again if the file was deleted or replaced."""
        if self._connection is not None and self._file == _identity(self._path):
            return self._connection
        self._disconnect()
        if not self._path.exists():
            os.close(open_private(str(self._path), os.O_RDWR | os.O_CREAT, self._label))
        self._file = _identity(self._path)
        connection = sqlite3.connect(
            self._path, timeout=BUSY_S, isolation_level=None, check_same_thread=False
        )
        try:
            boot = boot_id()
            connection.execute("PRAGMA journal_mode = TRUNCATE")
            connection.execute(f"PRAGMA synchronous = {'OFF' if boot else 'FULL'}")
            connection.execute("BEGIN IMMEDIATE")
            self._prepare(connection, boot)
            connection.execute("COMMIT")
        except BaseException:
            connection.close()
            raise
        self._connection = connection
        self._idle_ms = 0
        return connection

    def _prepare(self, connection: sqlite3.Connection, boot: str) -> None:
        """Create the tables, or empty them after a reboot."""
        for statement in _SCHEMA:
            connection.execute(statement)
        if connection.execute("SELECT id FROM identity").fetchone() is None:
            connection.execute("INSERT INTO identity VALUES (?)", (secrets.token_hex(16),))
        if connection.execute("SELECT boot FROM node").fetchone() == (boot,):
            return
        for table in ("node", "locks", "sessions", "ballots"):
            connection.execute(f"DELETE FROM {table}")
        node, now_us = self._node, wall_us()
        node.restart(now_us // 1000 - self._idle_ms, now_us, self._silence_ms, empty=False)
        floor, silent_until_ms = node.floor, node.silent_until_ms
        if self._idle_ms and silent_until_ms <= now_us // 1000:
            floor = 0  # its clock refuses every ballot that it may have accepted before
        elif not self._silence_ms:
            silent_until_ms = 0
        connection.execute("INSERT INTO node VALUES (?, ?, ?)", (boot, floor, silent_until_ms))

    def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def close(self) -> None:
        if self._process == os.getpid():
            with self._mutex:
                if not self._inside:
                    self._disconnect()


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        found = path.stat()
    except FileNotFoundError:
        return None
    return found.st_dev, found.st_ino


# ── rows as JSON ─────────────────────────────────────────────────────────────────────


def _lock_key(text: str) -> tuple[str, str]:
    kind, _, name = text.partition(SEPARATOR)
    return kind, name


def _lock_to(lock: LockRow) -> list[Any]:
    waiting = [
        [*key, each.since_us, each.n, each.inbox, each.until_ms]
        for key, each in lock.waiting.items()
    ]
    return [
        lock.highest,
        lock.used_ms,
        lock.session,
        lock.n,
        lock.ballot,
        lock.actor,
        lock.value,
        lock.since_ms,
        lock.hold_until_ms,
        lock.lock_delay_ms,
        lock.closed_until_ms,
        lock.closed_by,
        waiting,
        lock.flight,
    ]


def _lock_from(fields: list[Any]) -> LockRow:
    *plain, waiting, flight = fields
    lock = LockRow(*plain)
    lock.flight = flight
    lock.waiting = {(each[0], each[1]): Waiting(*each[2:]) for each in waiting}
    return lock


def _session_to(session: SessionRow) -> list[Any]:
    return [
        session.open,
        session.deadline_ms,
        session.renewals,
        session.ended,
        session.ended_ms,
        [[n, *key] for n, key in session.claims.items()],
        session.checksum,
    ]


def _session_from(fields: list[Any]) -> SessionRow:
    opening, deadline_ms, renewals, ended, ended_ms, claims, checksum = fields
    by_n = {n: (kind, name) for n, kind, name in claims}
    return SessionRow(Open(*opening), deadline_ms, renewals, ended, ended_ms, by_n, checksum)
