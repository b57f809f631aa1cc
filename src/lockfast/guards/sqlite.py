"""A guard inside the caller's own SQLite transaction: check and write commit together.

No SQLite library is imported here: the caller's connection, of `sqlite3` or `apsw`, is
all it takes, and what that library raises (busy, disk full) reaches the caller as it is.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

from lockfast.errors import UnsupportedError
from lockfast.guards.admission import (
    Mark,
    admitted,
    checked_result,
    compared_marks,
    judge,
    plan_admission,
)


class Cursor(Protocol):
    """The part of a cursor that a guard uses."""

    def execute(self, sql: str, parameters: tuple[str | int, ...] = ..., /) -> object: ...

    def fetchall(self) -> list[Any]: ...


class Connection(Protocol):
    """The part of a `sqlite3` or `apsw` connection that a guard uses."""

    @property
    def in_transaction(self) -> bool: ...

    def cursor(self) -> Cursor: ...


T = TypeVar("T")


class SqliteGuard:
    """Floors in a table of the caller's database, raised in the caller's transaction.

    `admit` and the writes after it commit together or not at all, and a rollback leaves
    the floor as it was. `admit` takes SQLite's write lock before it compares, so of two
    connections the second waits (or is told "database is locked") until the first has
    committed. Begin with `BEGIN IMMEDIATE`, or let `admit` be the first statement: a
    transaction that has read before may find that it can no longer write.

    On a `sqlite3` connection in its default mode an exclusive `admit` opens the
    transaction, as any write does there, and takes it back on a refusal. Everywhere else
    one must be open, else UnsupportedError: a check that commits by itself proves nothing.

    With `tree=True` names are paths: a write makes older tokens stale on its name, on
    every name above and on every name beneath, and leaves siblings alone. Tree floors and
    plain floors may share a table and do not see each other.

    The table is made in the main database when first needed, inside the transaction.
    Making a guard costs no I/O, so one per transaction is fine; it may be used wherever
    its connection may.
    """

    def __init__(
        self, connection: Connection, *, table: str = "lockfast_floors", tree: bool = False
    ) -> None:
        _check_table(table)
        self._connection = connection
        # A temporary table of this name must not stand in for the real one.
        self._table = f'main."{table}"'
        self._missing = f"no such table: main.{table}"
        self.tree = tree

    def admit(self, resource: str, token: int, *, shared: bool = False, once: bool = False) -> None:
        """Admit the holder of `token` to `resource`, or raise StaleTokenError.

        A token is admitted unless a newer exclusive one was admitted before; from the commit on,
        older tokens are refused. With `once`, a token is admitted a single time. With `shared`, the
        token is compared but not recorded, and only a read lock is taken. After a refusal, roll
        back what you wrote before it in the same transaction.
        """
        admission = plan_admission(
            resource, token, shared=shared, once=once, tree=self.tree, guard="sqlite"
        )
        cursor = _plain_cursor(self._connection)
        opened = self._join_transaction(cursor, shared=shared)
        try:
            if not shared:
                self._take_write_lock(cursor)
            judge(admission, self._highest(cursor, admission.compared))
            for mark in admission.raised:
                self._raise(cursor, mark, token)
        except BaseException:
            # On some errors (a full disk) SQLite itself rolls back, and there is no transaction
            # left.
            if opened and self._connection.in_transaction:
                cursor.execute("ROLLBACK")
            raise
        admitted(admission)

    def execute(
        self,
        resource: str,
        token: int,
        operation: Callable[[Any], T],
        *,
        shared: bool = False,
        once: bool = False,
    ) -> T:
        """Call `operation` with the connection, in a new transaction that is fenced.

        Begins, admits the token, calls, and commits; rolls back if anything raises. The operation
        must not commit. Raises UnsupportedError if a transaction is already open: in that case,
        call `admit` yourself.
        """
        connection = self._connection
        if self._is_inside():
            raise UnsupportedError(
                "execute() inside a transaction",
                "it commits what it executes, and with it all that was written before",
                "commit first, or call admit() in your transaction",
            )
        cursor = _plain_cursor(connection)
        cursor.execute("BEGIN" if shared else "BEGIN IMMEDIATE")
        try:
            self.admit(resource, token, shared=shared, once=once)
            result = checked_result(operation(connection))
            if not self._is_inside():
                raise UnsupportedError(
                    "an operation that ends its transaction",
                    "what it writes afterwards is not fenced",
                    "leave COMMIT and ROLLBACK to execute(); `with connection:` commits as well",
                )
            cursor.execute("COMMIT")
        except BaseException:
            if self._is_inside():
                cursor.execute("ROLLBACK")
            raise
        return result

    def floor(self, resource: str) -> int:
        """Return the lowest token that would be admitted now; 0 if any token would.

        It includes the connection's own uncommitted admissions.
        """
        marks = compared_marks(resource, tree=self.tree)
        return self._highest(_plain_cursor(self._connection), marks)

    def _is_inside(self) -> bool:
        """Return True if a transaction is open; a function, because statements change it."""
        return self._connection.in_transaction

    def _join_transaction(self, cursor: Cursor, *, shared: bool) -> bool:
        """Make sure that a transaction is open. Return True if it had to be opened."""
        if self._connection.in_transaction:
            return False
        if shared or not _begins_before_writes(self._connection):
            begin = "BEGIN" if shared else "BEGIN IMMEDIATE"
            raise UnsupportedError(
                "admit() outside a transaction",
                "the check would be over before your own statements begin",
                f"execute {begin} first and commit when you are done",
            )
        cursor.execute("BEGIN IMMEDIATE")
        return True

    def _take_write_lock(self, cursor: Cursor) -> None:
        # A write that changes nothing. In a deferred transaction it must come before the
        # first read: reading fixes a snapshot, and once another connection has committed
        # after it, SQLite lets this transaction write no more.
        lock = f"UPDATE {self._table} SET floor = floor WHERE 0"
        try:
            cursor.execute(lock)
        except Exception as error:
            if str(error) != self._missing:
                raise
            # IF NOT EXISTS: another connection may create it before we can write.
            cursor.execute(
                f"CREATE TABLE IF NOT EXISTS {self._table} (scope TEXT NOT NULL, "
                "resource TEXT NOT NULL, floor INTEGER NOT NULL, "
                "PRIMARY KEY (scope, resource)) WITHOUT ROWID"
            )
            cursor.execute(lock)

    def _highest(self, cursor: Cursor, marks: tuple[Mark, ...]) -> int:
        # max() also hides the column's declared type from the caller's converters.
        query = f"SELECT max(floor) FROM {self._table} WHERE scope = ? AND resource = ?"
        highest = 0
        try:
            for mark in marks:
                cursor.execute(query, mark)
                [(floor,)] = cursor.fetchall()
                highest = max(highest, floor or 0)
        except Exception as error:
            if str(error) != self._missing:
                raise
        return highest

    def _raise(self, cursor: Cursor, mark: Mark, token: int) -> None:
        cursor.execute(
            f"INSERT INTO {self._table} (scope, resource, floor) VALUES (?, ?, ?) "
            "ON CONFLICT (scope, resource) DO UPDATE SET floor = excluded.floor "
            "WHERE excluded.floor > floor",
            (*mark, token),
        )


def _check_table(table: object) -> None:
    # It becomes part of the statement text, where no parameter is possible.
    pattern = r"(?!(?i:sqlite_))[A-Za-z_][A-Za-z0-9_]{0,62}"
    if not isinstance(table, str) or not re.fullmatch(pattern, table):
        raise UnsupportedError(
            f"table={table!r}",
            "a guard's table is named by 1 to 63 ASCII letters, digits and underscores, "
            "does not begin with a digit, nor with `sqlite_`",
            "choose another name",
        )


def _plain_cursor(connection: Connection) -> Cursor:
    """Return a cursor whose rows are tuples, whatever the caller has configured."""
    cursor = connection.cursor()
    setattr(cursor, "row_factory" if hasattr(cursor, "row_factory") else "row_trace", None)
    return cursor


def _begins_before_writes(connection: Connection) -> bool:
    """Return True for `sqlite3` in its default mode; `apsw` opens no transaction implicitly."""
    if getattr(connection, "autocommit", None) is True:  # Python 3.12 on
        return False
    return getattr(connection, "isolation_level", None) is not None
