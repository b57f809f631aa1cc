"""The guard inside transactions of SQLAlchemy and Django, and inside a trigger."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, create_async_engine
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from lockfast.errors import StaleTokenError, UnsupportedError
from lockfast.guards import AsyncPostgresGuard, PostgresGuard
from lockfast.stores.postgresql.schema import guards
from tests.servers.postgresql import PostgresServer

WRITE = sa.text("INSERT INTO fences.writes VALUES ('x')")
COUNT = sa.text("SELECT count(*) FROM fences.writes")


@pytest.fixture(autouse=True)
def fences(server: PostgresServer) -> None:
    server.run("DROP SCHEMA IF EXISTS fences CASCADE")
    server.run(guards("fences"))
    server.run("CREATE TABLE fences.writes (value text)")


def engine_url(server: PostgresServer) -> str:
    return f"postgresql+psycopg://postgres@127.0.0.1:{server.port}/postgres"


def written(server: PostgresServer) -> tuple[int, int]:
    """Return how many writes and which floor were committed."""
    ((writes,),) = server.run("SELECT count(*) FROM fences.writes")
    ((floor,),) = server.run("SELECT coalesce(max(floor), 0) FROM fences.floors")
    return writes, floor


# ── SQLAlchemy ───────────────────────────────────────────────────────────────────────


@pytest.fixture
def engine(server: PostgresServer) -> Iterator[sa.Engine]:
    engine = sa.create_engine(engine_url(server))
    yield engine
    engine.dispose()


SYNC: dict[str, Callable[[sa.Engine], Any]] = {
    "connection": lambda engine: engine.connect(),
    "session": lambda engine: Session(engine),
    "scoped session": lambda engine: scoped_session(sessionmaker(engine)),
}


@pytest.mark.parametrize("kind", SYNC)
def test_sqlalchemy_commits_check_and_write_together(
    server: PostgresServer, engine: sa.Engine, kind: str
) -> None:
    opened = SYNC[kind](engine)
    try:
        guard = PostgresGuard(opened, schema="fences")
        guard.admit("orders/42", 16)
        opened.execute(WRITE)
        opened.rollback()
        assert written(server) == (0, 0)
        guard.admit("orders/42", 17)
        opened.execute(WRITE)
        assert written(server) == (0, 0)
        opened.commit()
        assert written(server) == (1, 17)
        with pytest.raises(StaleTokenError) as refused:
            guard.admit("orders/42", 16)
        assert refused.value.floor == 17
        assert guard.floor("orders/42") == 17
        opened.commit()
        # Only the guard was called: its floor is committed all the same.
        guard.admit("orders/42", 18)
        opened.commit()
        assert written(server) == (1, 18)
    finally:
        opened.close()


def test_sqlalchemy_autocommit_is_refused(server: PostgresServer, engine: sa.Engine) -> None:
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        guard = PostgresGuard(connection, schema="fences")
        with pytest.raises(UnsupportedError, match="AUTOCOMMIT"):
            guard.admit("orders/42", 17)
        assert guard.floor("orders/42") == 0


def test_sqlalchemy_on_another_database_is_refused() -> None:
    with sa.create_engine("sqlite://").connect() as connection:
        with pytest.raises(UnsupportedError, match=r"postgresql\+psycopg"):
            PostgresGuard(connection).admit("orders/42", 17)


def test_sqlalchemy_without_the_functions_is_told_what_to_run(engine: sa.Engine) -> None:
    with engine.connect() as connection:
        with pytest.raises(UnsupportedError, match="lockfast schema postgresql --guards"):
            PostgresGuard(connection, schema="nowhere").admit("orders/42", 17)


@pytest.mark.parametrize("kind", ["connection", "session"])
def test_sqlalchemy_under_asyncio(server: PostgresServer, kind: str) -> None:
    async def story() -> None:
        engine = create_async_engine(engine_url(server))
        opened: AsyncConnection | AsyncSession
        opened = await engine.connect() if kind == "connection" else AsyncSession(engine)
        try:
            guard = AsyncPostgresGuard(opened, schema="fences")
            await guard.admit("orders/42", 16)
            await opened.execute(WRITE)
            await opened.rollback()
            assert written(server) == (0, 0)
            await guard.admit("orders/42", 17)
            await opened.execute(WRITE)
            await opened.commit()
            assert written(server) == (1, 17)
            with pytest.raises(StaleTokenError):
                await guard.admit("orders/42", 16)
            assert await guard.floor("orders/42") == 17
        finally:
            await opened.close()
            await engine.dispose()

    asyncio.run(story())


def test_the_other_kind_of_connection_is_refused(server: PostgresServer, engine: sa.Engine) -> None:
    """A coroutine that is never awaited would admit nothing and raise nothing."""

    async def story() -> None:
        asynchronous = create_async_engine(engine_url(server))
        async with await psycopg.AsyncConnection.connect(server.conninfo()) as driver:
            for opened in (driver, asynchronous.connect(), AsyncSession(asynchronous)):
                with pytest.raises(UnsupportedError, match="not a connection or session"):
                    PostgresGuard(opened)
        await asynchronous.dispose()

    asyncio.run(story())
    with server.connect() as driver, engine.connect() as connection, Session(engine) as session:
        for opened in (driver, connection, session, object()):
            with pytest.raises(UnsupportedError, match="not a connection or session"):
                AsyncPostgresGuard(opened)
    with pytest.raises(UnsupportedError, match="not a connection or session"):
        PostgresGuard(object())


# ── Django ───────────────────────────────────────────────────────────────────────────


@pytest.fixture
def django_connection(server: PostgresServer) -> Iterator[Any]:
    import django  # type: ignore[import-untyped]
    from django.conf import settings  # type: ignore[import-untyped]
    from django.db.utils import ConnectionHandler  # type: ignore[import-untyped]

    if not settings.configured:
        settings.configure()
        django.setup()
    handler = ConnectionHandler(
        {
            "default": {
                "ENGINE": "django.db.backends.postgresql",
                "HOST": "127.0.0.1",
                "PORT": server.port,
                "USER": "postgres",
                "NAME": "postgres",
            }
        }
    )
    connection: Any = handler["default"]
    yield connection
    connection.close()


def test_django_commits_check_and_write_together(
    server: PostgresServer, django_connection: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from django.db import transaction  # type: ignore[import-untyped]

    monkeypatch.setattr(transaction, "get_connection", lambda using=None: django_connection)
    guard = PostgresGuard(django_connection, schema="fences")
    with pytest.raises(UnsupportedError, match="outside a transaction"):
        guard.admit("orders/42", 17)

    def write(token: int, *, fails: bool = False) -> None:
        with transaction.atomic():
            guard.admit("orders/42", token)
            with django_connection.cursor() as cursor:
                cursor.execute("INSERT INTO fences.writes VALUES ('x')")
            if fails:
                raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        write(16, fails=True)
    assert written(server) == (0, 0)
    write(17)
    assert written(server) == (1, 17)
    with pytest.raises(StaleTokenError):
        write(16)
    assert written(server) == (1, 17)
    assert guard.floor("orders/42") == 17
    with pytest.raises(UnsupportedError, match="lockfast schema postgresql --guards"):
        with transaction.atomic():
            PostgresGuard(django_connection, schema="nowhere").admit("orders/42", 17)


# ── triggers ─────────────────────────────────────────────────────────────────────────


def test_the_trigger_recipe_refuses_stale_and_unfenced_writes(server: PostgresServer) -> None:
    """The recipe is the one in docs/guards.md."""
    page = (Path(__file__).parents[2] / "docs" / "guards.md").read_text(encoding="utf-8")
    (recipe,) = re.findall(r"```sql\n(CREATE FUNCTION.*?)```", page, re.DOTALL)
    server.run(guards())
    server.run("CREATE TABLE orders (id bigint PRIMARY KEY, state text)")
    server.run("INSERT INTO orders VALUES (42, 'new'), (43, 'new')")
    server.run(recipe)

    def write(token: int | None, sql: str) -> None:
        with server.connect() as connection, connection.transaction():
            if token is not None:
                connection.execute(f"SET LOCAL lockfast.token = {token}")
            connection.execute(sql)

    def refused(token: int | None, sql: str) -> str | None:
        with pytest.raises(psycopg.Error) as error:
            write(token, sql)
        return error.value.sqlstate

    paid = "UPDATE orders SET state = 'paid' WHERE id = 42"
    assert refused(None, paid) == "22023"
    write(17, paid)
    assert refused(16, "UPDATE orders SET state = 'stale' WHERE id = 42") == "LF001"
    assert refused(16, "DELETE FROM orders WHERE id = 42") == "LF001"
    write(16, "UPDATE orders SET state = 'shipped' WHERE id = 43")
    write(18, "DELETE FROM orders WHERE id = 42")
    assert refused(17, "INSERT INTO orders VALUES (42, 'again')") == "LF001"
    assert server.run("SELECT * FROM orders") == [(43, "shipped")]
    server.run("DROP TABLE orders; DROP FUNCTION fence_orders()")
