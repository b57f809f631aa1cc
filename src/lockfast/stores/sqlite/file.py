"""One lock file as this process has it: one head, one connection, one gate, one mutex.

The gate is a POSIX lock on the head, the file beside the database that every step writes to.
It is held around every step, and around every checkpoint and close of the database: before
3.51.3, SQLite can corrupt a WAL file when a commit overlaps the checkpoint of another process.
It also hands over quicker than SQLite's own busy waiting does.

POSIX locks belong to the process and vanish when *any* descriptor of the file is closed,
so a file is opened once per process and shared by all clients in it.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import struct
import threading
import time
from pathlib import Path
from typing import Any, Final

from lockfast.core.commands import (
    WAKE_GRANTED,
    WAKE_LOOK,
    Command,
    Events,
    Leave,
    Reply,
    Wake,
)
from lockfast.core.table import READS, Limits, Table
from lockfast.errors import StoreError, StoreMisconfiguredError, StoreUnavailableError
from lockfast.ports import Deliver
from lockfast.runtimes.clock import now_ms
from lockfast.stores.sqlite import driver, filesystem, processes
from lockfast.stores.sqlite.head import Damaged, Head, path_of
from lockfast.stores.sqlite.rows import SCHEMA, Replaced, SqliteRows
from lockfast.stores.sqlite.wake_listener import WakeSender

APPLICATION_ID: Final = 0x4C4B4653
SCHEMA_VERSION: Final = 1
CHECKPOINT_PAGES: Final = 1000
CLOSE_S: Final = 1.0
UNKNOWN: Final = "(unknown)"
TRY_TO_LOCK: Final = fcntl.LOCK_EX | fcntl.LOCK_NB
CHECK_EVERY_MS: Final = 20
"""A file may be gone for so long before a busy process sees it; an idle one sees it at once."""
LOOKS: Final = 100
"""So often in a row the head is emptied while we look only if there is something wrong."""
SPIN_FIRST_S: Final = 0.00005
SPIN_MAX_S: Final = 0.001

_open_files: dict[str, SqliteFile] = {}
_open_files_mutex = threading.Lock()


def open_file(path: Path, driver_name: str) -> SqliteFile:
    """The file as this process has it, opened if need be; close() it once for each call."""
    real = os.path.realpath(path)
    with _open_files_mutex:
        found = _open_files.get(real)
        if found is not None and found.is_there():
            if found.driver_name != driver_name:
                raise StoreMisconfiguredError(
                    f"sqlite:///{real}",
                    f"is open through {found.driver_name} in this process already",
                    "two SQLite libraries on one file drop each other's locks; use one",
                )
            found.users += 1
            return found
        head = found.retire() if found is not None else None
        opened = _open_files[real] = SqliteFile(Path(real), driver_name, head)
        return opened


class SqliteFile:
    """A database of lock rows and the right to write to it."""

    def __init__(self, path: Path, driver_name: str, head: Head | None = None) -> None:
        self.path = path
        self._path_text = str(path)
        self.label = f"sqlite://{path}"
        self.driver_name = driver_name
        self.users = 1
        self.is_inherited = False
        """From the process this one was forked off: not to be used or closed here."""
        self._driver = driver.load(driver_name)
        # Re-entrant only so that `release` tells whether this thread has it.
        self._mutex = threading.RLock()
        self._listeners: dict[str, Deliver] = {}
        self._limits = Limits()
        self._connection: Any = None
        self._head = head
        self._gate = -1
        """The head's descriptor, by which the gate is shut."""
        self._check_at_ms = 0
        """When to look again whether the file is still there."""
        self._retired = False
        filesystem.prepare(path, self.label)
        self._wake_sender = WakeSender()
        try:
            self._open()
        except BaseException:
            self._shut()
            raise

    # ── one command ──────────────────────────────────────────────────────────────────

    def apply(self, command: Command, timeout_ms: int) -> Reply:
        """Carry out one command in one transaction and tell whom it concerns."""
        mutex = self._mutex
        if mutex._is_owned():  # type: ignore[attr-defined]
            raise StoreUnavailableError(
                self.label,
                "asked from a signal handler or finalizer that interrupted a transaction",
                "do it after the handler has returned",
            )
        until = time.monotonic() + timeout_ms / 1000
        wakes: list[Wake] = []
        # An exception may strike between any two calls (Ctrl-C), but not between a
        # `finally` and the first call in it. So what is undone there is undone whether
        # or not it was done: both releases are harmless if nothing was taken.
        try:
            try:
                # To ask with a timeout takes longer, also if it is free.
                if not mutex.acquire(False) and not mutex.acquire(
                    timeout=max(0.0, timeout_ms / 1000)
                ):
                    raise self._kept_busy()
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
            # It may have been carried out all the same: let those concerned look.
            for wake in wakes:
                self._tell(wake._replace(what=WAKE_LOOK) if wake.what == WAKE_GRANTED else wake)
            raise
        return reply

    def _write(self, command: Command, until: float, wakes: list[Wake]) -> Reply:
        rows = self._rows
        try:
            self._enter_gate(until)
            try:
                at_ms = now_ms()
                if at_ms >= self._check_at_ms and type(command) is not Leave:
                    self._check_identity()  # to leave a file that is gone harms nobody
                    self._check_at_ms = at_ms + CHECK_EVERY_MS
                if self._connection.in_transaction:
                    self._undo()
                rows.start(at_ms)
                if type(command) is Events:
                    rows.keep_log(at_ms)
                reply, wakes[:] = self._table.apply(command, at_ms, time.time_ns() // 1000)
                rows.commit()
                return reply
            except BaseException as error:
                self._undo()
                if (told := self._told(error)) is not None:
                    raise told from error
                raise
        finally:
            fcntl.lockf(self._gate, fcntl.LOCK_UN)

    def _read(self, command: Command, until: float, wakes: list[Wake]) -> Reply:
        rows = self._rows
        try:
            self._check_identity()
            self._look()
            at_ms = now_ms()
            looks_on = type(command) is not Events or not rows.log_ends_soon(at_ms)
            reply = self._table.apply(command, at_ms, 0)[0] if looks_on else None
            self._execute("COMMIT")
        except BaseException as error:
            self._undo()
            if (told := self._told(error)) is not None:
                raise told from error
            raise
        # To look at the log has it written from then on.
        return reply if reply is not None else self._write(command, until, wakes)

    def _look(self) -> None:
        """Begin to read what stood in head and table at one instant."""
        for _ in range(LOOKS):
            self._execute("BEGIN")
            with contextlib.suppress(Damaged):  # it is being written under our eyes
                if self._rows.look():
                    return
            self._execute("COMMIT")
        raise self._gone()

    def _undo(self) -> None:
        self._rows.forget()
        if self._connection is not None and self._connection.in_transaction:
            with contextlib.suppress(*self._driver.errors):
                self._execute("ROLLBACK")

    def _tell(self, wake: Wake) -> None:
        deliver = self._listeners.get(wake.inbox)
        if deliver is not None:
            deliver(wake)
        else:
            self._wake_sender.tell(wake)

    def attach(self, inbox: str, deliver: Deliver) -> None:
        self._listeners[inbox] = deliver

    def detach(self, inbox: str) -> None:
        self._listeners.pop(inbox, None)

    # ── mutex and gate ───────────────────────────────────────────────────────────────

    def _enter_gate(self, until: float) -> None:
        pause = SPIN_FIRST_S
        while True:
            try:
                fcntl.lockf(self._gate, TRY_TO_LOCK)
                return
            except (BlockingIOError, PermissionError):
                if time.monotonic() >= until:
                    raise self._kept_shut(self._gate_keeper()) from None
            time.sleep(pause)
            pause = min(pause * 1.5, SPIN_MAX_S)

    def _kept_shut(self, pid: str) -> StoreUnavailableError:
        return StoreUnavailableError(
            self.label,
            f"process {pid} has kept the gate shut",
            "it is stopped inside a transaction: continue it or kill it",
        )

    def _kept_busy(self) -> StoreUnavailableError:
        """Why another thread of ours has not come back from its transaction."""
        pid = self._gate_keeper()
        if pid != UNKNOWN:
            return self._kept_shut(pid)
        return StoreUnavailableError(self.label, "other threads kept it busy", "try again")

    def _gate_keeper(self) -> str:
        """The pid of whoever holds the gate, if the system tells."""
        asked = struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
        try:
            told = fcntl.fcntl(self._gate, fcntl.F_GETLK, asked)
            kind, _, _, _, pid = struct.unpack("hhqqi4x", told)
        except (OSError, struct.error):
            return UNKNOWN
        return UNKNOWN if kind == fcntl.F_UNLCK else str(pid)

    # ── opening and closing ──────────────────────────────────────────────────────────

    def _open_again(self, until: float) -> None:
        if self.users <= 0:
            raise StoreUnavailableError(self.label, "the client is closed", "connect again")
        self._check_not_retired()
        self._open(until)

    def _open(self, until: float | None = None) -> None:
        """Open gate and database, and make or check the schema, all behind the gate."""
        until = until if until is not None else time.monotonic() + 5
        try:
            head = self._head = self._head or Head(self.path)
            self._gate = head.descriptor
        except OSError as error:
            raise filesystem.translate(error, self.path, self.label) from error
        try:
            self._enter_gate(until)  # in here: Ctrl-C must not leave it shut
            if not self.path.exists():
                os.close(os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
            self._connection = self._driver.connect(str(self.path))
            self._execute = self._connection.execute
            self._inode = os.stat(self.path).st_ino
            self._rows = SqliteRows(self._connection, head)
            self._set_up()
            self._rows.open(processes.boot_id(), now_ms())
            self._table = Table(self._rows, self._limits)
        except self._driver.errors as error:
            self._discard()
            raise driver.translate(self._driver.code(error), str(error), self.label) from error
        except OSError as error:
            self._discard()
            if isinstance(error, StoreUnavailableError):
                raise
            raise filesystem.translate(error, self.path, self.label) from error
        except BaseException:
            self._discard()
            raise
        finally:
            fcntl.lockf(self._gate, fcntl.LOCK_UN)

    def _set_up(self) -> None:
        execute = self._execute
        application = execute("PRAGMA application_id").fetchone()[0]
        tables = execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
        if tables and application != APPLICATION_ID:
            raise StoreMisconfiguredError(
                self.label, "is a database of another program", "give locks a file of their own"
            )
        version = execute("PRAGMA user_version").fetchone()[0]
        if version > SCHEMA_VERSION:
            raise StoreMisconfiguredError(
                self.label,
                f"has schema {version}, this release knows {SCHEMA_VERSION}",
                "upgrade lockfast here, or use another file",
            )
        execute("PRAGMA journal_mode = WAL").fetchall()
        # A power cut may undo the last transactions. It also ends every session, and
        # tokens go on from the wall clock, so nothing is promised that needs an fsync.
        execute("PRAGMA synchronous = NORMAL").fetchall()
        execute(f"PRAGMA wal_autocheckpoint = {CHECKPOINT_PAGES}").fetchall()
        if not tables:
            execute("BEGIN IMMEDIATE")
            for statement in SCHEMA:
                execute(statement)
            execute(f"PRAGMA application_id = {APPLICATION_ID}")
            execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
            execute("COMMIT")

    def is_there(self) -> bool:
        """Whether the path still leads to the file we have open."""
        if self._retired or self._connection is None:
            return not self._retired
        try:
            self._check_identity()
        except (StoreError, OSError):
            return False
        return True

    def _check_identity(self) -> None:
        try:
            if os.stat(self._path_text).st_ino == self._inode and os.fstat(self._gate).st_nlink:
                return
        except FileNotFoundError:
            pass
        except OSError as error:
            raise filesystem.translate(error, self.path, self.label) from error
        raise self._gone()

    def _check_not_retired(self) -> None:
        if self._retired:
            raise self._gone()

    def _gone(self) -> StoreError:
        return StoreError(
            self.label,
            "was deleted or replaced while in use, and its locks with it",
            "close this client and connect again",
        )

    def retire(self) -> Head | None:
        """The file is gone and another takes its place; return the head if that is the same.

        From then on its gate is not ours to touch: any descriptor of it that we close, and
        any lock of it that we give back, would open it under those inside.
        """
        with self._mutex:
            self._retired = True
            # One of its own to lock instead: nobody else can come to a file that is gone.
            self._gate = _private_descriptor()
            head, self._head = self._head, None
            if head is None:
                return None
            try:
                if os.path.samestat(os.fstat(head.descriptor), os.stat(path_of(self.path))):
                    return head
            except OSError:
                pass  # it went away with the file
            head.close()
            return None

    def close(self) -> None:
        """Give back one use; the last one closes the database."""
        with _open_files_mutex:
            self.users -= 1
            # A thread of ours may be waiting at the gate, for long. What cannot be closed in
            # time stays as it is, for whoever opens it next in this process.
            if self.users > 0 or not self._mutex.acquire(timeout=CLOSE_S):
                return
            try:
                if self.close_connection():
                    if _open_files.get(self._path_text) is self:
                        del _open_files[self._path_text]
                    # Last: closing its descriptor opens the gate, whoever of us is inside.
                    self._shut()
            finally:
                self._mutex.release()

    def close_connection(self) -> bool:
        """Close the database behind the gate; the next command opens it again.

        False if the gate stays shut: to close outside it could corrupt the file.
        """
        if self._connection is None:
            return True
        try:
            self._enter_gate(time.monotonic() + CLOSE_S)
            self._discard()
        except StoreUnavailableError:
            return False
        finally:
            fcntl.lockf(self._gate, fcntl.LOCK_UN)
        return True

    def _shut(self) -> None:
        self._wake_sender.close()
        gate, self._gate = self._gate, -1
        head, self._head = self._head, None
        if head is not None:
            head.close()
        elif gate != -1:
            os.close(gate)

    def _discard(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with contextlib.suppress(*self._driver.errors):
                connection.close()

    def _told(self, error: BaseException) -> StoreError | None:
        """What a caller is told of an error while the file was in use; None: that error itself."""
        if isinstance(error, self._driver.errors):
            return driver.translate(self._driver.code(error), str(error), self.label)
        if isinstance(error, Damaged | Replaced):
            return self._gone()
        if isinstance(error, OSError) and not isinstance(error, StoreError):
            return filesystem.translate_use(error, self.path, self.label)
        return None

    # ── forking ──────────────────────────────────────────────────────────────────────

    def before_fork(self) -> None:
        """No connection crosses a fork: SQLite forbids even closing it on the other side."""
        inside = self._mutex._is_owned()  # type: ignore[attr-defined]
        if self._mutex.acquire(timeout=5) and not inside:
            self.close_connection()

    def after_fork_in_parent(self) -> None:
        with contextlib.suppress(RuntimeError):
            self._mutex.release()


def _private_descriptor() -> int:
    import tempfile

    with tempfile.TemporaryFile() as made:
        return os.dup(made.fileno())


def _before_fork() -> None:
    # Noted down: another thread may close one of them, and must not find it locked after.
    _forking.files = list(_open_files.values())
    for file in _forking.files:
        file.before_fork()


def _after_fork_in_parent() -> None:
    for file in _forking.files:
        file.after_fork_in_parent()
    _forking.files = []


def _after_fork_in_child() -> None:
    # What is left of the parent's files is kept as it is: never used, never closed.
    global _open_files, _open_files_mutex
    for file in _open_files.values():
        file.is_inherited = True
    _inherited.append(_open_files)
    _open_files = {}
    _open_files_mutex = threading.Lock()


_forking = threading.local()
_inherited: list[dict[str, SqliteFile]] = []
os.register_at_fork(
    before=_before_fork,
    after_in_parent=_after_fork_in_parent,
    after_in_child=_after_fork_in_child,
)
