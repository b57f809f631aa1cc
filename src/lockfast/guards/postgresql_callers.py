"""Whose transaction a PostgreSQL guard joins: psycopg, SQLAlchemy or Django.

No driver or framework is imported here: what the caller passes is told by its methods. SQLAlchemy
and Django begin, commit and roll back in their own way, so the guard's statement goes through
them and not past them, to the driver's connection beneath.
"""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager, AbstractContextManager
from inspect import iscoroutinefunction
from typing import Any, Final, Protocol, cast

from lockfast.errors import UnsupportedError

_IDLE: Final = 0
"""psycopg's transaction status outside a transaction."""
_UNKNOWN: Final = 4
"""psycopg's transaction status of a connection that is closed."""


class Caller(Protocol):
    def one(self, sql: str, values: Any, *, joins: bool) -> Any:
        """Return the only column of the only row; with `joins`, only inside a transaction."""
        ...

    def transaction(self) -> AbstractContextManager[object]:
        """Run a new transaction; raise UnsupportedError if one is already open."""
        ...


class AsyncCaller(Protocol):
    async def one(self, sql: str, values: Any, *, joins: bool) -> Any: ...

    def transaction(self) -> AbstractAsyncContextManager[object]: ...


def caller_of(connection: Any) -> Caller:
    """Return the adapter for the caller's connection; raise UnsupportedError for anything else."""
    if _is_django(connection):
        return _Django(connection)
    if _is_session(connection) and not iscoroutinefunction(connection.connection):
        return _Session(connection)
    if _is_sqlalchemy(connection) and not iscoroutinefunction(connection.exec_driver_sql):
        return _SqlAlchemy(connection)
    if _is_psycopg(connection) and not iscoroutinefunction(connection.execute):
        return _Psycopg(connection)
    raise _refused(connection, "PostgresGuard", "psycopg 3, SQLAlchemy or Django")


def async_caller_of(connection: Any) -> AsyncCaller:
    """As `caller_of`, for asyncio."""
    if _is_session(connection) and iscoroutinefunction(connection.connection):
        return _AsyncSession(connection)
    if _is_sqlalchemy(connection) and iscoroutinefunction(connection.exec_driver_sql):
        return _AsyncSqlAlchemy(connection)
    if _is_psycopg(connection) and iscoroutinefunction(connection.execute):
        return _AsyncPsycopg(connection)
    raise _refused(connection, "AsyncPostgresGuard", "psycopg 3 or SQLAlchemy, for asyncio")


def _is_django(connection: Any) -> bool:
    return hasattr(connection, "in_atomic_block") and hasattr(connection, "vendor")


def _is_session(connection: Any) -> bool:
    return hasattr(connection, "get_bind") and hasattr(connection, "connection")


def _is_sqlalchemy(connection: Any) -> bool:
    return hasattr(connection, "exec_driver_sql")


def _is_psycopg(connection: Any) -> bool:
    # Ask the class: as an attribute of the object, `info` may raise anything.
    return hasattr(type(connection), "info") and hasattr(connection, "execute")


def _refused(connection: Any, guard: str, wanted: str) -> UnsupportedError:
    return UnsupportedError(
        f"{guard} for {type(connection).__module__}.{type(connection).__qualname__}",
        f"it is not a connection or session of {wanted}",
        "see docs/guards.md",
    )


def _refuse_outside(is_outside: bool, advice: str) -> None:
    if is_outside:
        raise UnsupportedError(
            "admit() outside a transaction",
            "the check would be over before your own statements begin",
            advice,
        )


def _refuse_inside(is_inside: bool) -> None:
    if is_inside:
        raise UnsupportedError(
            "execute() inside a transaction",
            "it commits what it executes, and with it all that was written before",
            "commit first, or call admit() in your transaction",
        )


def _only(row: Any) -> Any:
    """Return the only column, whatever the connection's row factory makes of a row."""
    if isinstance(row, dict):
        return next(iter(row.values()))
    return row[0]


# ── psycopg ──────────────────────────────────────────────────────────────────────────


def _check_psycopg(connection: Any) -> None:
    outside = connection.autocommit and connection.info.transaction_status == _IDLE
    _refuse_outside(outside, "use `with connection.transaction():`")


def _begin_psycopg(connection: Any) -> Any:
    # A closed connection raises its own error when the transaction begins.
    _refuse_inside(connection.info.transaction_status not in (_IDLE, _UNKNOWN))
    return connection.transaction()


class _Psycopg:
    def __init__(self, connection: Any) -> None:
        self._connection = connection

    def one(self, sql: str, values: Any, *, joins: bool) -> Any:
        if joins:
            _check_psycopg(self._connection)
        with self._connection.cursor() as cursor:
            return _only(cursor.execute(sql, values).fetchone())

    def transaction(self) -> AbstractContextManager[object]:
        return cast("AbstractContextManager[object]", _begin_psycopg(self._connection))


class _AsyncPsycopg:
    def __init__(self, connection: Any) -> None:
        self._connection = connection

    async def one(self, sql: str, values: Any, *, joins: bool) -> Any:
        if joins:
            _check_psycopg(self._connection)
        async with self._connection.cursor() as cursor:
            await cursor.execute(sql, values)
            return _only(await cursor.fetchone())

    def transaction(self) -> AbstractAsyncContextManager[object]:
        return cast("AbstractAsyncContextManager[object]", _begin_psycopg(self._connection))


# ── SQLAlchemy ───────────────────────────────────────────────────────────────────────


def _check_sqlalchemy(connection: Any, driver_connection: Any, *, joins: bool) -> None:
    dialect = connection.dialect
    if dialect.name != "postgresql" or not dialect.driver.startswith("psycopg"):
        raise UnsupportedError(
            f"a guard on {dialect.name}+{dialect.driver}",
            "it needs PostgreSQL and the driver psycopg",
            "use an engine for postgresql+psycopg://",
        )
    # Otherwise SQLAlchemy begins a transaction with the first statement, which may be ours.
    _refuse_outside(joins and driver_connection.autocommit, "do not use isolation_level=AUTOCOMMIT")


def _begin_sqlalchemy(connection: Any) -> Any:
    """For a connection or a session."""
    _refuse_inside(connection.in_transaction())
    return connection.begin()


class _SqlAlchemy:
    """For a `Connection`."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    def one(self, sql: str, values: Any, *, joins: bool) -> Any:
        connection = self._connection
        _check_sqlalchemy(connection, connection.connection.driver_connection, joins=joins)
        return connection.exec_driver_sql(sql, tuple(values)).scalar_one()

    def transaction(self) -> AbstractContextManager[object]:
        return cast("AbstractContextManager[object]", _begin_sqlalchemy(self._connection))


class _Session:
    """For a `Session` or `scoped_session`."""

    def __init__(self, session: Any) -> None:
        self._session = session

    def one(self, sql: str, values: Any, *, joins: bool) -> Any:
        return _SqlAlchemy(self._session.connection()).one(sql, values, joins=joins)

    def transaction(self) -> AbstractContextManager[object]:
        return cast("AbstractContextManager[object]", _begin_sqlalchemy(self._session))


class _AsyncSqlAlchemy:
    """For an `AsyncConnection`."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    async def one(self, sql: str, values: Any, *, joins: bool) -> Any:
        connection = self._connection
        pooled = await connection.get_raw_connection()
        _check_sqlalchemy(connection, pooled.driver_connection, joins=joins)
        return (await connection.exec_driver_sql(sql, tuple(values))).scalar_one()

    def transaction(self) -> AbstractAsyncContextManager[object]:
        return cast("AbstractAsyncContextManager[object]", _begin_sqlalchemy(self._connection))


class _AsyncSession:
    """For an `AsyncSession` or `async_scoped_session`."""

    def __init__(self, session: Any) -> None:
        self._session = session

    async def one(self, sql: str, values: Any, *, joins: bool) -> Any:
        connection = await self._session.connection()
        return await _AsyncSqlAlchemy(connection).one(sql, values, joins=joins)

    def transaction(self) -> AbstractAsyncContextManager[object]:
        return cast("AbstractAsyncContextManager[object]", _begin_sqlalchemy(self._session))


# ── Django ───────────────────────────────────────────────────────────────────────────


class _Django:
    """For `django.db.connection`, or one of `django.db.connections`."""

    def __init__(self, connection: Any) -> None:
        if connection.vendor != "postgresql":
            raise UnsupportedError(
                f"a guard on Django's {connection.vendor} backend", "it needs PostgreSQL"
            )
        self._connection = connection

    def one(self, sql: str, values: Any, *, joins: bool) -> Any:
        outside = self._connection.get_autocommit() and not self._connection.in_atomic_block
        _refuse_outside(joins and outside, "use `with transaction.atomic():`")
        with self._connection.cursor() as cursor:
            cursor.execute(sql, values)
            return _only(cursor.fetchone())

    def transaction(self) -> AbstractContextManager[object]:
        raise UnsupportedError(
            "execute() on a connection of Django",
            "its transactions are Django's to begin",
            "use lockfast.integrations.django.FencedDatabase()",
        )
