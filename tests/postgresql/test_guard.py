"""The guard inside the caller's transaction: check and write commit together."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from lockfast.errors import StaleTokenError, UnsupportedError
from lockfast.guards import AsyncPostgresGuard, PostgresGuard
from lockfast.stores.postgresql.schema import guards
from tests.servers.postgresql import PostgresServer

Connection = psycopg.Connection[Any]


@pytest.fixture
def connection(server: PostgresServer) -> Iterator[Connection]:
    server.run("DROP SCHEMA IF EXISTS fences CASCADE")
    server.run(guards("fences"))
    server.run("CREATE TABLE fences.writes (value text)")
    with server.connect() as opened:
        yield opened


def guard_of(connection: Connection, **options: Any) -> PostgresGuard:
    return PostgresGuard(connection, schema="fences", **options)


def test_a_rollback_takes_back_the_floor_with_the_write(connection: Connection) -> None:
    guard = guard_of(connection)
    with connection.transaction():
        guard.admit("orders/42", 16)
    with pytest.raises(ZeroDivisionError), connection.transaction():
        guard.admit("orders/42", 17)
        connection.execute("INSERT INTO fences.writes VALUES ('new')")
        raise ZeroDivisionError
    assert guard.floor("orders/42") == 16
    assert connection.execute("SELECT count(*) FROM fences.writes").fetchone() == (0,)


def test_an_older_token_is_refused(connection: Connection) -> None:
    guard = guard_of(connection)
    with connection.transaction():
        guard.admit("orders/42", 17)
        guard.admit("orders/42", 17)
        with pytest.raises(StaleTokenError) as refused:
            guard.admit("orders/42", 16)
        assert (refused.value.token, refused.value.floor) == (16, 17)
        with pytest.raises(StaleTokenError):
            guard.admit("orders/42", 17, once=True)
        with pytest.raises(StaleTokenError):
            guard.admit("orders/42", 16, shared=True)
        guard.admit("orders/42", 18, shared=True)
        assert guard.floor("orders/42") == 17
        guard.admit("orders/43", 1)


def test_a_tree_guard_looks_above_and_beneath(connection: Connection) -> None:
    guard = guard_of(connection, tree=True)
    with connection.transaction():
        guard.admit("a/b", 10)
        guard.admit("a/c", 5)
        for stale in ("a", "a/b", "a/b/x"):
            with pytest.raises(StaleTokenError):
                guard.admit(stale, 9)
        guard.admit("a", 20)
        with pytest.raises(StaleTokenError):
            guard.admit("a/c", 19)
        assert guard.floor("a/c/d") == 20


def test_outside_a_transaction_admit_refuses(connection: Connection) -> None:
    with pytest.raises(UnsupportedError, match=r"outside a transaction"):
        guard_of(connection).admit("orders/42", 17)


def test_a_database_without_the_functions_is_told_what_to_run(connection: Connection) -> None:
    with pytest.raises(UnsupportedError, match="lockfast schema postgresql --guards"):
        with connection.transaction():
            PostgresGuard(connection, schema="nowhere").admit("orders/42", 17)


def test_of_two_transactions_the_second_waits_and_is_refused(
    server: PostgresServer, connection: Connection
) -> None:
    """The newer token is admitted but not committed yet: the older one must not pass."""
    outcome: list[object] = []

    def stale() -> None:
        with server.connect() as other, other.transaction():
            try:
                guard_of(other).admit("orders/42", 16)
                outcome.append("admitted")
            except StaleTokenError as error:
                outcome.append(error.floor)

    thread = threading.Thread(target=stale)
    with connection.transaction():
        guard_of(connection).admit("orders/42", 17)
        thread.start()
        server.wait_until("SELECT count(*) > 0 FROM pg_locks WHERE NOT granted")
    thread.join(30)
    assert outcome == [17]


def test_other_languages_use_the_function(connection: Connection) -> None:
    connection.execute("SELECT fences.admit('orders/42', 17)")
    with pytest.raises(psycopg.Error) as refused:
        connection.execute("SELECT fences.admit('orders/42', 16)")
    assert refused.value.sqlstate == "LF001"


def test_the_same_under_asyncio(server: PostgresServer, connection: Connection) -> None:
    async def story() -> None:
        async with await psycopg.AsyncConnection.connect(server.conninfo()) as opened:
            guard = AsyncPostgresGuard(opened, schema="fences")
            await guard.admit("orders/42", 17)
            with pytest.raises(StaleTokenError):
                await guard.admit("orders/42", 16)
            assert await guard.floor("orders/42") == 17

    asyncio.run(story())


def test_a_closed_connection_is_reported_as_closed(server: PostgresServer) -> None:
    """It was taken for one with an open transaction: "commit first"."""

    async def work() -> None:
        opened = await psycopg.AsyncConnection.connect(server.conninfo())
        await opened.close()
        with pytest.raises(psycopg.OperationalError, match="closed"):
            await AsyncPostgresGuard(opened).execute("orders/42", 17, never)

    async def never(connection: object) -> None:
        pytest.fail("it was called")

    opened = psycopg.connect(server.conninfo())
    opened.close()
    with pytest.raises(psycopg.OperationalError, match="closed"):
        PostgresGuard(opened).execute("orders/42", 17, lambda _: pytest.fail("it was called"))
    asyncio.run(work())
