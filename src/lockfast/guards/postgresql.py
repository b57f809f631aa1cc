"""A guard inside the caller's own PostgreSQL transaction: check and write commit together.

No driver is imported here: the caller's connection is all it takes (postgresql_callers.py), and
what the server raises reaches the caller unchanged. The rule itself is a SQL function, so that
programs in other languages can use it too: `SELECT lockfast.admit('orders/42', 17)`.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeVar

from lockfast.errors import UnsupportedError
from lockfast.guards.admission import (
    admitted,
    checked_result,
    compared_marks,
    judge,
    plan_admission,
)
from lockfast.guards.postgresql_callers import async_caller_of, caller_of

T = TypeVar("T")

_MISSING: Final = frozenset({"3F000", "42P01", "42883"})
"""Schema, table or function does not exist."""


class _Call:
    """One admission as SQL, for both guards."""

    def __init__(self, schema: str, tree: bool) -> None:
        if not re.fullmatch(r"[a-z_][a-z0-9_]{0,50}", schema):
            raise UnsupportedError(
                f"schema={schema!r}", "use small letters, digits and _, not beginning with a digit"
            )
        self.tree = tree
        self._schema = schema

    def admission(self, resource: str, token: int, shared: bool, once: bool) -> tuple[str, Any]:
        sql = f'SELECT "{self._schema}".try_admit(%s, %s::bigint, %s, %s, %s)'
        return sql, (resource, token, shared, once, self.tree)

    def floor(self, resource: str) -> tuple[str, Any]:
        marks = compared_marks(resource, tree=self.tree)
        either = " OR ".join("(scope = %s AND resource = %s)" for _ in marks)
        sql = f'SELECT coalesce(max(floor), 0) FROM "{self._schema}".floors WHERE {either}'
        return sql, [text for mark in marks for text in mark]

    def translated(self, error: Exception) -> Exception:
        """The same error, unless it says that the guard's SQL is missing."""
        # SQLAlchemy and Django wrap the driver's error.
        own = getattr(error, "orig", None) or error.__cause__ or error
        if getattr(own, "sqlstate", None) in _MISSING:
            return UnsupportedError(
                f"a guard in schema {self._schema!r}",
                f"the database lacks its table or functions ({error})",
                "run the output of `lockfast schema postgresql --guards` in this database",
            )
        return error


class PostgresGuard:
    """Floors in a table of the caller's database, raised in the caller's transaction.

    `admit` and the writes after it commit together or not at all, and a rollback leaves the
    floor as it was. It locks the floors it compares until the end of the transaction, so of two
    transactions on one resource the second waits until the first is over. In an isolation level
    above READ COMMITTED the server may end the second with a serialization failure (40001):
    retry the transaction then, as for any other.

    With `tree=True` names are paths: a write makes older tokens stale on its name, on every name
    above and on every name beneath, and leaves siblings alone; their transactions wait for each
    other all the same, since they raise the floors of the same ancestors.

    `connection` is a connection of psycopg 3, a `Connection` or `Session` of SQLAlchemy on the
    driver psycopg, or Django's; in a transaction, else UnsupportedError. Making a guard costs no
    I/O, so one per transaction is fine.
    """

    def __init__(self, connection: Any, *, schema: str = "lockfast", tree: bool = False) -> None:
        self.tree = tree
        self._connection = connection
        self._call = _Call(schema, tree)
        self._caller = caller_of(connection)

    def admit(self, resource: str, token: int, *, shared: bool = False, once: bool = False) -> None:
        """Admit the holder of `token` to `resource`, or raise StaleTokenError.

        A token is admitted unless a newer exclusive one was admitted before; from the commit on,
        older tokens are refused. With `once`, a token is admitted a single time. With `shared`, the
        token is compared but not recorded. After a refusal, roll back what you wrote before it.
        """
        call = self._call
        admission = plan_admission(
            resource, token, shared=shared, once=once, tree=call.tree, guard="postgresql"
        )
        refused_by = self._one(*call.admission(resource, token, shared, once), joins=True)
        if refused_by is not None:
            judge(admission, int(refused_by))
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

        Begins, admits the token, calls, and commits; rolls back if anything raises. Raises
        UnsupportedError if a transaction is already open: in that case, call `admit` yourself.
        """
        with self._caller.transaction():
            self.admit(resource, token, shared=shared, once=once)
            return checked_result(operation(self._connection))

    def floor(self, resource: str) -> int:
        """Return the lowest token that would be admitted now; 0 if any token would."""
        return int(self._one(*self._call.floor(resource)))

    def _one(self, sql: str, values: Any, *, joins: bool = False) -> Any:
        try:
            return self._caller.one(sql, values, joins=joins)
        except Exception as error:
            translated = self._call.translated(error)
            if translated is error:
                raise
            raise translated from error


class AsyncPostgresGuard:
    """As PostgresGuard, on an `AsyncConnection` of psycopg 3, or an `AsyncConnection` or
    `AsyncSession` of SQLAlchemy."""

    def __init__(self, connection: Any, *, schema: str = "lockfast", tree: bool = False) -> None:
        self.tree = tree
        self._connection = connection
        self._call = _Call(schema, tree)
        self._caller = async_caller_of(connection)

    async def admit(
        self, resource: str, token: int, *, shared: bool = False, once: bool = False
    ) -> None:
        """Admit the holder of `token` to `resource`, or raise StaleTokenError."""
        call = self._call
        admission = plan_admission(
            resource, token, shared=shared, once=once, tree=call.tree, guard="postgresql"
        )
        refused_by = await self._one(*call.admission(resource, token, shared, once), joins=True)
        if refused_by is not None:
            judge(admission, int(refused_by))
        admitted(admission)

    async def execute(
        self,
        resource: str,
        token: int,
        operation: Callable[[Any], Awaitable[T]],
        *,
        shared: bool = False,
        once: bool = False,
    ) -> T:
        """Call `operation` with the connection, in a new transaction that is fenced."""
        async with self._caller.transaction():
            await self.admit(resource, token, shared=shared, once=once)
            return await operation(self._connection)

    async def floor(self, resource: str) -> int:
        """Return the lowest token that would be admitted now; 0 if any token would."""
        return int(await self._one(*self._call.floor(resource)))

    async def _one(self, sql: str, values: Any, *, joins: bool = False) -> Any:
        try:
            return await self._caller.one(sql, values, joins=joins)
        except Exception as error:
            translated = self._call.translated(error)
            if translated is error:
                raise
            raise translated from error
