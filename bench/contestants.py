"""The locks that are compared, each behind the same three methods.

Every one is used as its own documentation shows, with its own defaults, except that waiting never
times out. Libraries are imported when a contestant is created, so a process loads only the one it
runs.
"""

from __future__ import annotations

import fcntl
import os
import threading
from abc import ABC, abstractmethod
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import lockfast

__all__ = [
    "LOCKS",
    "ApswFloor",
    "Contestant",
    "Diskcache",
    "Filelock",
    "Floor",
    "Lockfast",
    "Portalocker",
    "Sqlite3Floor",
]

NEVER_S = 86_400.0


class Contestant(ABC):
    """One lock in `directory`: every process that opens the same directory contends for it."""

    name: str

    @abstractmethod
    def __init__(self, directory: Path) -> None: ...

    @abstractmethod
    def acquire(self) -> None:
        """Return when the lock is held, however long that takes."""

    @abstractmethod
    def release(self) -> None: ...

    def close(self) -> None:  # noqa: B027 (most have nothing to close)
        pass


class Lockfast(Contestant):
    """Lockfast on the embedded store; subclasses use other stores."""

    name = "lockfast"

    def __init__(self, directory: Path) -> None:
        import lockfast

        self._client = lockfast.connect(self.url(directory))
        self._lock = self._client.lock("bench", ttl=30)
        self._lease: lockfast.Lease | None = None

    @staticmethod
    def url(directory: Path) -> str:
        return f"sqlite://{directory / 'locks.db'}"

    def acquire(self) -> None:
        self._lease = self._lock.acquire(timeout=None)

    def release(self) -> None:
        assert self._lease is not None
        self._lease.release()

    def close(self) -> None:
        self._client.close()


class Filelock(Contestant):
    name = "filelock"

    def __init__(self, directory: Path) -> None:
        import filelock

        self._lock = filelock.FileLock(directory / "lock")

    def acquire(self) -> None:
        self._lock.acquire()

    def release(self) -> None:
        self._lock.release()


class Portalocker(Contestant):
    name = "portalocker"

    def __init__(self, directory: Path) -> None:
        import portalocker

        self._lock = portalocker.Lock(directory / "lock", timeout=NEVER_S)

    def acquire(self) -> None:
        self._lock.acquire()

    def release(self) -> None:
        self._lock.release()


class Diskcache(Contestant):
    name = "diskcache"

    def __init__(self, directory: Path) -> None:
        import diskcache

        self._cache = diskcache.Cache(directory)
        self._lock = diskcache.Lock(self._cache, "bench")

    def acquire(self) -> None:
        self._lock.acquire()

    def release(self) -> None:
        self._lock.release()

    def close(self) -> None:
        self._cache.close()


class Floor(Contestant):
    """The least that a lock in a SQLite file can cost: two gated write transactions of one row.

    The gate is that of Lockfast's embedded store. There is no queue, session, token or wake, and no
    contention: the floor runs alone.
    """

    name = "floor"
    library: str
    _connection: Any

    def __init__(self, directory: Path) -> None:
        self._mutex = threading.Lock()
        self._gate_fd = os.open(directory / "gate", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._connect(str(directory / "floor.db"))
        self._connection.execute("PRAGMA journal_mode=WAL")
        self._connection.execute("PRAGMA synchronous=NORMAL")
        self._connection.execute(
            "CREATE TABLE lock(name TEXT PRIMARY KEY, holder TEXT, token INTEGER) WITHOUT ROWID"
        )
        self._token = 0

    @abstractmethod
    def _connect(self, path: str) -> None: ...

    def acquire(self) -> None:
        self._token += 1
        self._write("INSERT INTO lock VALUES (?, ?, ?)", ("bench", "somebody", self._token))

    def release(self) -> None:
        self._write("DELETE FROM lock WHERE name = ?", ("bench",))

    def _write(self, statement: str, values: tuple[str | int, ...]) -> None:
        execute = self._connection.execute
        with self._mutex:
            fcntl.lockf(self._gate_fd, fcntl.LOCK_EX)
            try:
                execute("BEGIN IMMEDIATE")
                execute(statement, values)
                execute("COMMIT")
            finally:
                fcntl.lockf(self._gate_fd, fcntl.LOCK_UN)

    def close(self) -> None:
        self._connection.close()
        os.close(self._gate_fd)


class Sqlite3Floor(Floor):
    def _connect(self, path: str) -> None:
        import sqlite3

        self._connection = sqlite3.connect(path, isolation_level=None)
        self.library = f"sqlite3 (SQLite {sqlite3.sqlite_version})"


class ApswFloor(Floor):
    def _connect(self, path: str) -> None:
        import apsw

        self._connection = apsw.Connection(path)
        self.library = f"apsw (SQLite {apsw.sqlite_lib_version()})"


LOCKS: tuple[type[Contestant], ...] = (Lockfast, Filelock, Portalocker, Diskcache)
