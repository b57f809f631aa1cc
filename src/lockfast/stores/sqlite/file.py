"""One lock database as this process has it: one connection, one gate, one mutex.

A step is one transaction, behind the mutex (threads of this process) and the gate (processes).
Reading is a transaction too, without the gate. Opening, checking and closing the database happen
behind the gate, like steps, so that none of them overlaps a commit: before 3.51.3, SQLite can
corrupt a write-ahead log when a commit overlaps the checkpoint of another process.

A database is opened once per process and shared by all clients in it, because SQLite's own locks
are POSIX locks, which belong to the process and vanish when any descriptor of the file is closed.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

from lockfast.core.commands import (
    READS,
    WAKE_GRANTED,
    WAKE_LOOK,
    Command,
    Events,
    Leave,
    Reply,
    Wake,
)
from lockfast.core.table import Limits, Table
from lockfast.errors import StoreError, StoreMisconfiguredError, StoreUnavailableError
from lockfast.ports import Deliver
from lockfast.runtimes.platform import at_fork, now_ms
from lockfast.stores.private_files import open_private
from lockfast.stores.sqlite import driver, filesystem, processes
from lockfast.stores.sqlite.gate import Gate
from lockfast.stores.sqlite.packing import UnreadableError
from lockfast.stores.sqlite.presence import Presence
from lockfast.stores.sqlite.rows import PAGE_BYTES, SCHEMA, SqliteRows
from lockfast.stores.sqlite.wake_listener import WakeSender

APPLICATION_ID: Final = 0x4C4B4653
SCHEMA_VERSION: Final = 2
CHECKPOINT_PAGES: Final = 500
QUICK_CHECK: Final = "PRAGMA quick_check(1)"
OPEN_S: Final = 5.0
CLOSE_S: Final = 1.0
CHECK_EVERY_MS: Final = 20
"""How often a busy process checks that its files are still the ones at their paths."""

_open_files: dict[str, SqliteFile] = {}
_open_files_mutex = threading.Lock()


def open_file(path: Path, driver_name: str, *, group: bool = False) -> SqliteFile:
    """Return this process's handle of the database, opening it if necessary.

    Call close() once for each call.
    """
    real = os.path.realpath(path)
    with _open_files_mutex:
        found = _open_files.get(real)
        if found is not None and found.is_there():
            if found.driver_name != driver_name:
                raise StoreMisconfiguredError(
                    f"sqlite://{real}",
                    f"is already open through {found.driver_name} in this process",
                    "two SQLite libraries would drop each other's locks; use one of them",
                )
            found.users += 1
            return found
        gate = found.retire() if found is not None else None
        if os.path.islink(path):
            # Anyone who can change the link could redirect our locks.
            filesystem.prepare(path, f"sqlite://{path}", group=group)
        opened = _open_files[real] = SqliteFile(Path(real), driver_name, gate, group=group)
        return opened


ALL_INBOXES = "*"
"""The listener that a server attaches: it receives the wakes of every step of this process."""


class SqliteFile:
    """A database of lock rows and the right to write to it."""

    def __init__(
        self,
        path: Path,
        driver_name: str,
        gate: Gate | None = None,
        *,
        group: bool = False,
    ) -> None:
        self.path = path
        self._path_text = str(path)
        self.label = f"sqlite://{path}"
        self.driver_name = driver_name
        self.users = 1
        self.is_inherited = False
        """The files that the parent process opened: must not be used or closed after a fork."""
        self._group = group
        self._driver = driver.load(driver_name)
        # Re-entrant only so that `release` fails in a thread that does not hold it.
        self._mutex = threading.RLock()
        self._listeners: dict[str, Deliver] = {}
        self._limits = Limits()
        self._connection: Any = None
        self._gate = gate
        self._presence: Presence | None = None
        self._check_at_ms = 0
        self._retired = False
        filesystem.prepare(path, self.label, group=group)
        self._wake_sender = WakeSender()
        try:
            self._open(time.monotonic() + OPEN_S)
        except BaseException:
            self._shut()
            raise

    # ── one command ──────────────────────────────────────────────────────────────────

    def apply(self, command: Command, timeout_ms: int) -> Reply:
        """Execute one command in one transaction, and wake the sessions that it concerns."""
        mutex = self._mutex
        if mutex._is_owned():  # type: ignore[attr-defined]
            raise StoreUnavailableError(
                self.label,
                "asked from a signal handler or finalizer that interrupted a transaction",
                "do it after the handler has returned",
            )
        until = time.monotonic() + timeout_ms / 1000
        wakes: list[Wake] = []
        # An exception (Ctrl-C) may strike between any two calls, but not between a `finally` and
        # the first call in it. So both releases run unconditionally; they are harmless if nothing
        # was acquired.
        try:
            try:
                # An acquire with a timeout takes longer, even if the mutex is free.
                if not mutex.acquire(False) and not mutex.acquire(
                    timeout=max(0.0, timeout_ms / 1000)
                ):
                    raise self._busy()
                if self._connection is None or self.users <= 0 or self._retired:
                    self._open_again(until)
                if type(command) in READS:
                    reply = self._read(command, until, wakes)
                else:
                    reply = self._write(command, until, wakes)
            finally:
                try:
                    mutex.release()
                except RuntimeError:
                    pass
            for wake in wakes:
                self._tell(wake)
        except BaseException:
            # The step may have been committed nevertheless: let the sessions check.
            for wake in wakes:
                self._tell(wake._replace(what=WAKE_LOOK) if wake.what == WAKE_GRANTED else wake)
            raise
        return reply

    def _write(self, command: Command, until: float, wakes: list[Wake]) -> Reply:
        rows, execute, gate = self._rows, self._execute, self._gate
        assert gate is not None
        try:
            gate.enter(until)
            try:
                at_ms = now_ms()
                if at_ms >= self._check_at_ms and type(command) is not Leave:
                    # A Leave to a deleted database is harmless.
                    self._check_places(gate, until)
                    self._check_at_ms = at_ms + CHECK_EVERY_MS
                execute("BEGIN IMMEDIATE")
                rows.start(at_ms)
                if type(command) is Events:
                    rows.log.extend(at_ms)
                reply, wakes[:] = self._table.apply(command, at_ms, time.time_ns() // 1000)
                rows.commit()
                execute("COMMIT")
                return reply
            except BaseException as error:
                self._undo()
                if (typed := self._typed(error)) is not None:
                    raise typed from error
                raise
        finally:
            gate.leave()

    def _read(self, command: Command, until: float, wakes: list[Wake]) -> Reply:
        rows, execute = self._rows, self._execute
        try:
            self._check_identity()
            execute("BEGIN")
            rows.look()
            at_ms = now_ms()
            reply = None
            if type(command) is not Events or not rows.log.ends_soon(at_ms):
                reply = self._table.apply(command, at_ms, 0)[0]
            execute("COMMIT")
        except BaseException as error:
            self._undo()
            if (typed := self._typed(error)) is not None:
                raise typed from error
            raise
        # Reading the log extends it, which is a write.
        return reply if reply is not None else self._write(command, until, wakes)

    def _undo(self) -> None:
        self._rows.forget()
        if self._connection is not None and self._connection.in_transaction:
            with contextlib.suppress(*self._driver.errors):
                self._execute("ROLLBACK")

    # ── for maintenance ──────────────────────────────────────────────────────────────

    @contextlib.contextmanager
    def behind_gate(self, until: float) -> Iterator[None]:
        """Hold mutex and gate."""
        with self._mutex:
            gate = self._gate
            assert gate is not None
            try:
                gate.enter(until)
                yield
            finally:
                gate.leave()

    @contextlib.contextmanager
    def transaction(self, begin: str) -> Iterator[Callable[..., Any]]:
        """Run statements in a transaction; translate errors of the library to StoreError."""
        with self._mutex:
            try:
                self._execute(begin)
                yield self._execute
                self._execute("COMMIT")
            except BaseException as error:
                self._undo()
                if (typed := self._typed(error)) is not None:
                    raise typed from error
                raise

    def reset(self, until: float) -> tuple[int, int]:
        """Delete all rows except the counters; return how many sessions and locks there were.

        Also works if rows cannot be read.
        """
        with self.behind_gate(until), self.transaction("BEGIN IMMEDIATE"):
            return self._rows.reset()

    # ── wakes ────────────────────────────────────────────────────────────────────────

    def _tell(self, wake: Wake) -> None:
        deliver = self._listeners.get(wake.inbox)
        if deliver is not None:
            deliver(wake)
            return
        deliver_all = self._listeners.get(ALL_INBOXES)
        if deliver_all is not None:
            deliver_all(wake)
        self._wake_sender.tell(wake)

    def attach(self, inbox: str, deliver: Deliver) -> None:
        self._listeners[inbox] = deliver

    def detach(self, inbox: str) -> None:
        self._listeners.pop(inbox, None)

    def detach_all(self, inbox: str) -> None:
        """Detach the listener of a server."""
        self.detach(inbox)
        self.detach(ALL_INBOXES)

    def _busy(self) -> StoreUnavailableError:
        """Return why another thread of this process has not finished its transaction."""
        gate = self._gate
        if gate is not None and (gate.holder() or os.getpid()) != os.getpid():
            return gate.shut()
        return StoreUnavailableError(
            self.label, "other threads of this process kept the database busy", "try again"
        )

    # ── opening and closing ──────────────────────────────────────────────────────────

    def _open_again(self, until: float) -> None:
        if self.users <= 0:
            raise StoreUnavailableError(self.label, "the client is closed", "connect again")
        if self._retired:
            raise self._gone()
        self._open(until)

    def _open(self, until: float) -> None:
        """Open gate and database, and create or check the schema, all inside the gate."""
        try:
            if self._gate is None:
                self._gate = Gate(self._path_text, self.label, group=self._group)
        except OSError as error:
            if isinstance(error, StoreError):
                raise
            raise filesystem.translate(error, self.path, self.label) from error
        gate = self._gate
        try:
            gate.enter(until)  # Inside the try: Ctrl-C must not leave the gate locked.
            self._await_current(gate, until)
            crashed = gate.join() and _size_of(f"{self.path}-wal") > 0
            self._create()
            filesystem.check_files(self.path, self.label, group=self._group)
            self._connection = self._driver.connect(self._path_text)
            self._execute = self._connection.execute
            self._identity = _identity_of(self._path_text)
            self._set_up()
            if crashed:
                self._check_pages()
            self._rows = SqliteRows(self._connection)
            self._execute("BEGIN IMMEDIATE")
            self._rows.open(processes.boot_id(), now_ms(), time.time_ns() // 1_000_000)
            self._execute("COMMIT")
            self._presence = Presence(self._path_text)
            self._table = Table(self._rows, self._limits)
        except BaseException as error:
            self._discard()
            if isinstance(error, OSError) and not isinstance(error, StoreError):
                raise filesystem.translate(error, self.path, self.label) from error
            if (typed := self._typed(error)) is not None:
                raise typed from error
            raise
        finally:
            gate.leave()

    def _create(self) -> None:
        with contextlib.suppress(FileExistsError):
            flags = os.O_RDWR | os.O_CREAT | os.O_EXCL
            os.close(open_private(self._path_text, flags, self.label, group=self._group))

    def _set_up(self) -> None:
        execute = self._execute
        application = execute("PRAGMA application_id").fetchone()[0]
        tables = execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
        if tables and application != APPLICATION_ID:
            raise StoreMisconfiguredError(
                self.label,
                "is a database of another program",
                "give locks a database of their own",
            )
        version = execute("PRAGMA user_version").fetchone()[0]
        if tables and version != SCHEMA_VERSION:
            raise StoreMisconfiguredError(
                self.label,
                f"has schema {version}, this release uses {SCHEMA_VERSION}",
                "use the same release of lockfast everywhere, or another file",
            )
        if not tables:
            execute(f"PRAGMA page_size = {PAGE_BYTES}").fetchall()
        execute("PRAGMA journal_mode = WAL").fetchall()
        # A power cut may undo the last transactions. It also ends every session, and
        # tokens go on from the wall clock, so no promise needs an fsync per commit.
        execute("PRAGMA synchronous = NORMAL").fetchall()
        execute(f"PRAGMA wal_autocheckpoint = {CHECKPOINT_PAGES}").fetchall()
        if not tables:
            execute("BEGIN IMMEDIATE")
            for statement in SCHEMA:
                execute(statement)
            execute(f"PRAGMA application_id = {APPLICATION_ID}")
            execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
            execute("COMMIT")

    def _check_pages(self) -> None:
        """After a crash: raise StoreError if SQLite finds the database damaged."""
        (found,) = self._execute(QUICK_CHECK).fetchone()
        if found != "ok":
            raise driver.damaged(self.label, found)

    # ── whether the files are still there ────────────────────────────────────────────

    def is_there(self) -> bool:
        """Return True if the path still leads to the database that we have open."""
        if self._retired or self._connection is None:
            return not self._retired
        try:
            self._check_identity()
        except (StoreError, OSError):
            return False
        return True

    def _check_places(self, gate: Gate, until: float) -> None:
        self._check_identity()
        self._await_current(gate, until)

    def _await_current(self, gate: Gate, until: float) -> None:
        """Inside the gate: reopen it if the gate file was deleted or replaced."""
        while not gate.is_current():
            gate.reopen()
            gate.enter(until)
            gate.join()

    def _check_identity(self) -> None:
        try:
            if _identity_of(self._path_text) == self._identity:
                return
        except FileNotFoundError:
            pass
        except OSError as error:
            raise filesystem.translate(error, self.path, self.label) from error
        raise self._gone()

    def _gone(self) -> StoreError:
        return StoreError(
            self.label,
            "was deleted or replaced while in use, and its locks with it",
            "close this client and connect again",
        )

    def retire(self) -> Gate | None:
        """Close a database that was deleted; return the gate, for the one that replaces it."""
        with self._mutex:
            self._retired = True
            if self._presence is not None:
                self._presence.end()  # Its wal-index may be at the path of the new one.
            gate, self._gate = self._gate, None
            return gate

    def close(self) -> None:
        """End one use; the last one closes the database."""
        with _open_files_mutex:
            self.users -= 1
            # Another thread may be waiting at the gate for long. If closing takes too long, the
            # database stays open for the next client of this process.
            if self.users > 0 or not self._mutex.acquire(timeout=CLOSE_S):
                return
            try:
                if self.close_connection():
                    if _open_files.get(self._path_text) is self:
                        del _open_files[self._path_text]
                    self._shut()
            finally:
                self._mutex.release()

    def close_connection(self) -> bool:
        """Close the database inside the gate; the next command opens it again.

        Return False if the gate stays locked: closing outside the gate could corrupt the database.
        """
        if self._connection is None:
            return True
        gate = self._gate
        if gate is None:  # Retired: no other process can reach a deleted database.
            self._discard()
            return True
        try:
            gate.enter(time.monotonic() + CLOSE_S)
            self._discard()
        except StoreUnavailableError:
            return False
        finally:
            gate.leave()
        return True

    def _shut(self) -> None:
        self._wake_sender.close()
        gate, self._gate = self._gate, None
        if gate is not None:
            gate.close()

    def _discard(self) -> None:
        connection, self._connection = self._connection, None
        presence, self._presence = self._presence, None
        if presence is not None:
            presence.end()
        if connection is not None:
            with contextlib.suppress(*self._driver.errors):
                connection.close()
        if presence is not None:
            presence.close()

    def _typed(self, error: BaseException) -> StoreError | None:
        """Return the error for a caller, if `error` comes from the database or the system."""
        if isinstance(error, StoreError):
            return None
        if isinstance(error, self._driver.errors):
            return driver.translate(self._driver.code(error), str(error), self.label)
        if isinstance(error, UnreadableError):
            return StoreError(
                self.label,
                f"contains a row that lockfast did not write ({error})",
                "see `lockfast doctor`; `lockfast reset` frees all locks and keeps tokens rising",
            )
        if isinstance(error, OSError):
            return filesystem.translate_use(error, self.path, self.label)
        return None

    # ── forking ──────────────────────────────────────────────────────────────────────

    def before_fork(self) -> None:
        """Close the connection: SQLite forbids even that in a forked child."""
        inside = self._mutex._is_owned()  # type: ignore[attr-defined]
        if self._mutex.acquire(timeout=5) and not inside:
            self.close_connection()

    def after_fork_in_parent(self) -> None:
        with contextlib.suppress(RuntimeError):
            self._mutex.release()

    def after_fork_in_child(self) -> None:
        self.is_inherited = True
        if self._gate is not None:
            self._gate.abandon()


def _identity_of(path: str) -> tuple[int, int]:
    found = os.stat(path)
    return found.st_dev, found.st_ino


def _size_of(path: str) -> int:
    try:
        return os.stat(path).st_size
    except FileNotFoundError:
        return 0


def _before_fork() -> None:
    # Iterate over a list: another thread may close one of them, which must not stay locked.
    _forking.files = list(_open_files.values())
    for file in _forking.files:
        file.before_fork()


def _after_fork_in_parent() -> None:
    for file in _forking.files:
        file.after_fork_in_parent()
    _forking.files = []


def _after_fork_in_child() -> None:
    # Keep references to the parent's files, so that nothing closes their connections here.
    global _open_files, _open_files_mutex
    for file in _open_files.values():
        file.after_fork_in_child()
    _inherited.append(_open_files)
    _open_files = {}
    _open_files_mutex = threading.Lock()


_forking = threading.local()
_inherited: list[dict[str, SqliteFile]] = []
at_fork(
    before=_before_fork,
    after_in_parent=_after_fork_in_parent,
    after_in_child=_after_fork_in_child,
)
