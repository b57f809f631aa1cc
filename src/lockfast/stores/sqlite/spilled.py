"""The tables for what was moved out of the hot row: rows by key, log entries by position."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final, Protocol

SCHEMA: Final = (
    "CREATE TABLE rows (k TEXT PRIMARY KEY, v TEXT NOT NULL) WITHOUT ROWID",
    "CREATE TABLE log (position INTEGER PRIMARY KEY, entry TEXT NOT NULL)",
)


class Connection(Protocol):
    """The part of a SQLite library that is used."""

    def execute(self, sql: str, parameters: Any = ..., /) -> Any: ...
    def executemany(self, sql: str, parameters: Any, /) -> Any: ...


class SpilledRows:
    """The rows that no recent step has changed; nothing is cached."""

    def __init__(self, connection: Connection) -> None:
        self._execute = connection.execute
        self._executemany = connection.executemany

    def get(self, key: str) -> str | None:
        found = self._execute("SELECT v FROM rows WHERE k = ?", (key,)).fetchone()
        return None if found is None else found[0]

    def scan(
        self, start: str, stop: str, limit: int, reverse: bool = False
    ) -> Sequence[tuple[str, str]]:
        """Return rows with start <= key < stop, in ascending or descending order."""
        order = "DESC" if reverse else "ASC"
        found: list[tuple[str, str]] = self._execute(
            f"SELECT k, v FROM rows WHERE k >= ? AND k < ? ORDER BY k {order} LIMIT ?",
            (start, stop, limit),
        ).fetchall()
        return found

    def change(self, put: Iterable[tuple[str, str]], deleted: Iterable[str]) -> None:
        self._executemany("REPLACE INTO rows (k, v) VALUES (?, ?)", put)
        self._executemany("DELETE FROM rows WHERE k = ?", [(key,) for key in deleted])

    def clear(self) -> None:
        self._execute("DELETE FROM rows")


class SpilledLog:
    """The log entries that do not fit into the hot row."""

    def __init__(self, connection: Connection) -> None:
        self._execute = connection.execute
        self._executemany = connection.executemany

    def entries(self, after: int, limit: int) -> list[str]:
        found = self._execute(
            "SELECT entry FROM log WHERE position > ? ORDER BY position LIMIT ?", (after, limit)
        ).fetchall()
        return [entry for (entry,) in found]

    def oldest(self) -> int | None:
        position: int | None = self._execute("SELECT min(position) FROM log").fetchone()[0]
        return position

    def add(self, entries: Iterable[tuple[int, str]]) -> None:
        self._executemany("REPLACE INTO log (position, entry) VALUES (?, ?)", entries)

    def delete_before(self, position: int) -> None:
        self._execute("DELETE FROM log WHERE position < ?", (position,))

    def clear(self) -> None:
        self._execute("DELETE FROM log")
