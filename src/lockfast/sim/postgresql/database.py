"""Tables, sequences and transactions, and which part of them is on disk.

A transaction sees what was committed when a statement began, and its own changes. Its changes
become visible to others when it commits. A commit that waits for the disk makes everything before
it durable; a crash may undo one that does not wait, and every later one. Sequences are not
transactional: they are logged 32 values ahead, and after a crash they continue after the last
logged value.
"""

from __future__ import annotations

import re
from collections.abc import Generator, Iterable
from typing import Any, Final, TypeAlias

from lockfast.sim.postgresql.locks import Request
from lockfast.stores.postgresql.schema import VERSION, creation

Row: TypeAlias = dict[str, Any]
Key: TypeAlias = tuple[Any, ...]
Yields: TypeAlias = Request | None
"""What a step yields: the lock it requests, or None between two statements."""
LOGGED_AHEAD: Final = 32
"""How many values of a sequence one log record covers."""


class SqlError(Exception):
    """An error with which the server refuses a statement."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code
        self.message = message


class Table:
    """The columns of a table and its primary key, parsed from tables.sql."""

    def __init__(self, name: str, body: str) -> None:
        self.name = name
        lines = [line.strip() for line in body.split("\n")]
        self.columns = tuple(line.split()[0] for line in lines if re.match(r"[a-z]", line))
        found = re.search(r"^ *PRIMARY KEY \((.*)\)", body, re.MULTILINE)
        self.key = tuple(found[1].split(", ")) if found else _inline_key(body)

    def key_of(self, row: Row) -> Key:
        return tuple(row[column] for column in self.key)


def _inline_key(body: str) -> tuple[str, ...]:
    return tuple(line.split()[0] for line in body.split("\n") if "PRIMARY KEY" in line)


def _tables() -> dict[str, Table]:
    sql = re.sub(r" *--[^\n]*", "", creation())
    found = re.finditer(r"CREATE TABLE lockfast\.(\w+) \((.*?)\n\)", sql, re.DOTALL)
    return {match[1]: Table(match[1], match[2]) for match in found}


TABLES: Final = _tables()


class Sequence:
    def __init__(self) -> None:
        self.last = 0
        self.logged = 0
        """The value in the log: a sequence continues after it once the log is on disk."""
        self.durable = 0
        """The part of `logged` that is on disk."""

    @property
    def last_value(self) -> int:
        """Return the value that the server shows, which is 1 before the first draw."""
        return max(1, self.last)

    def next(self) -> int:
        self.last += 1
        if self.last > self.logged:
            self.logged = self.last + LOGGED_AHEAD
        return self.last

    def set(self, value: int) -> None:
        self.last = self.logged = value

    def recovered(self, at: int) -> Sequence:
        heir = Sequence()
        heir.last = heir.logged = heir.durable = at
        return heir


class Database:
    """The committed data."""

    def __init__(self, wall_us: int) -> None:
        self.tables: dict[str, dict[Key, Row]] = {name: {} for name in TABLES}
        self.sequences = {"tokens": Sequence(), "arrivals": Sequence()}
        self.timeline = 1
        self._volatile: list[list[tuple[str, Key, Row | None]]] = []
        """Commits that are not on disk yet: for each, the rows that it replaced."""
        first = self.sequences["tokens"].last_value
        self.tables["meta"][(True,)] = {
            "single": True,
            "version": VERSION,
            "epoch": wall_us - first,
            "timeline": self.timeline_text,
        }

    @property
    def timeline_text(self) -> str:
        return f"{self.timeline:08X}"

    def commit(self, changes: dict[tuple[str, Key], Row | None], is_durable: bool) -> None:
        replaced = []
        for (name, key), row in changes.items():
            table = self.tables[name]
            replaced.append((name, key, table.get(key)))
            if row is None:
                table.pop(key, None)
            else:
                table[key] = row
        if is_durable:
            self.flush()
        else:
            self._volatile.append(replaced)

    def flush(self) -> None:
        """Flush the log to disk."""
        self._volatile.clear()
        for sequence in self.sequences.values():
            sequence.durable = sequence.logged

    @property
    def volatile(self) -> int:
        """The number of commits that are not on disk."""
        return len(self._volatile)

    def recover(self, lost: int) -> None:
        """Recover from a crash that lost the last `lost` commits that were not on disk."""
        for replaced in reversed(self._volatile[len(self._volatile) - lost :]):
            for name, key, row in reversed(replaced):
                if row is None:
                    self.tables[name].pop(key, None)
                else:
                    self.tables[name][key] = row
        self._volatile.clear()
        for name, sequence in self.sequences.items():
            self.sequences[name] = sequence.recovered(sequence.durable)

    def copy(self) -> Database:
        """Return the state of a standby that has received the whole log."""
        found = Database.__new__(Database)
        found.tables = {name: dict(rows) for name, rows in self.tables.items()}
        found.sequences = {
            name: sequence.recovered(sequence.logged) for name, sequence in self.sequences.items()
        }
        found.timeline = self.timeline
        found._volatile = []
        return found

    def promoted(self) -> Database:
        """Return a standby or restored backup that has been promoted: it starts a new timeline."""
        found = self.copy()
        found.timeline += 1
        return found


class Transaction:
    """The rows that a transaction sees and has changed. Writing waits for row locks."""

    def __init__(self, database: Database, *, is_frozen: bool = False) -> None:
        self.database = database
        self._tables = database.tables
        if is_frozen:
            self._tables = {name: dict(rows) for name, rows in database.tables.items()}
        self.changes: dict[tuple[str, Key], Row | None] = {}
        self.notices: dict[tuple[str, str], None] = {}
        """Notifications, sent once each at commit."""
        self.is_durable = True
        """The commit waits for the disk."""
        self.has_drawn = False
        self.idle_s: int | None = None
        """The server ends the connection after this long idle in the transaction."""

    def get(self, table: str, *key: Any) -> Row | None:
        if self.changes and (table, key) in self.changes:
            return self.changes[table, key]
        return self._tables[table].get(key)

    def rows(self, table: str) -> Iterable[Row]:
        committed = self._tables[table]
        if not self.changes:
            return committed.values()
        changed = {key: row for (name, key), row in self.changes.items() if name == table}
        if not changed:
            return committed.values()
        both = {**committed, **changed}
        return [row for row in both.values() if row is not None]

    def locked(self, table: str, key: Key) -> Generator[Yields, Any, Row | None]:
        """Lock a row and return its current state, which may have changed while this waited."""
        yield Request((table, *key))
        return self.get(table, *key)

    def insert(self, table: str, *values: Any) -> Generator[Yields, Any, None]:
        row = dict(zip(TABLES[table].columns, values, strict=True))
        key = TABLES[table].key_of(row)
        if (yield from self.locked(table, key)) is not None:
            raise SqlError("23505", f"duplicate key in {table}: {key}")
        self.changes[table, key] = row

    def update(self, table: str, key: Key, **columns: Any) -> Generator[Yields, Any, Row | None]:
        """Change some columns of a row and return the row as changed; None if it does not exist."""
        row = yield from self.locked(table, key)
        if row is None:
            return None
        changed = self.changes[table, key] = {**row, **columns}
        return changed

    def delete(self, table: str, *key: Any) -> Generator[Yields, Any, None]:
        if (yield from self.locked(table, key)) is not None:
            self.changes[table, key] = None
