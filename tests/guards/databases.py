"""Connections of both SQLite libraries behind one interface, without implicit transactions."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Protocol

import apsw

# Never the same file with both: two copies of SQLite in one process break each
# other's file locks.
LIBRARIES = ("sqlite3", "apsw")


class Database(Protocol):
    """What the tests use of a connection, beyond what a guard uses."""

    @property
    def in_transaction(self) -> bool: ...

    def cursor(self) -> Any: ...

    def execute(self, sql: str, parameters: tuple[str | int, ...] = ..., /) -> Iterable[Any]: ...

    def close(self) -> None: ...


def open_database(library: str, path: Path | str, *, wait_ms: int = 0) -> Database:
    """Return a connection in autocommit mode that waits `wait_ms` for another's lock."""
    if library == "sqlite3":
        return sqlite3.connect(
            path, timeout=wait_ms / 1000, isolation_level=None, check_same_thread=False
        )
    connection = apsw.Connection(str(path))
    connection.set_busy_timeout(wait_ms)
    return connection


def rows(database: Database, sql: str) -> list[tuple[Any, ...]]:
    """Return all rows of a query, read to the end so that no statement stays open."""
    return [tuple(row) for row in database.execute(sql)]


class Overtaken:
    """A connection that lets others act just before certain statements."""

    def __init__(self, database: Database, before: Mapping[str, Callable[[], None]]) -> None:
        self._database = database
        self._before = before
        self._cursor = database.cursor()

    @property
    def in_transaction(self) -> bool:
        return self._database.in_transaction

    def cursor(self) -> Overtaken:
        return self

    def execute(self, sql: str, parameters: tuple[str | int, ...] = (), /) -> object:
        for opening, act in self._before.items():
            if sql.startswith(opening):
                act()
        return self._cursor.execute(sql, parameters)

    def fetchall(self) -> list[Any]:
        return list(self._cursor.fetchall())
