"""The SQLite guard inside one connection's transactions."""

from __future__ import annotations

import sqlite3
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import apsw
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockfast.errors import StaleTokenError, UnsupportedError
from lockfast.guards import SqliteGuard
from tests.guards.databases import LIBRARIES, Database, open_database, rows


@pytest.fixture(params=LIBRARIES)
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Database]:
    with closing(open_database(request.param, tmp_path / "orders.db")) as opened:
        opened.execute("CREATE TABLE writes (value TEXT)")
        yield opened


def test_a_rollback_takes_back_the_floor_with_the_write(database: Database) -> None:
    guard = SqliteGuard(database)
    database.execute("BEGIN")
    guard.admit("orders/42", 16)
    database.execute("COMMIT")
    database.execute("BEGIN")
    guard.admit("orders/42", 17)
    database.execute("INSERT INTO writes VALUES ('new')")
    assert guard.floor("orders/42") == 17
    database.execute("ROLLBACK")
    assert guard.floor("orders/42") == 16
    assert rows(database, "SELECT * FROM writes") == []


def test_a_savepoint_takes_back_the_floor_too(database: Database) -> None:
    guard = SqliteGuard(database)
    database.execute("BEGIN")
    guard.admit("orders/42", 16)
    database.execute("SAVEPOINT inner_step")
    guard.admit("orders/42", 17)
    database.execute("ROLLBACK TO inner_step")
    guard.admit("orders/42", 16)
    database.execute("COMMIT")
    assert guard.floor("orders/42") == 16


def test_making_the_table_never_commits_what_the_caller_wrote(database: Database) -> None:
    guard = SqliteGuard(database)
    database.execute("BEGIN")
    database.execute("INSERT INTO writes VALUES ('before')")
    guard.admit("orders/42", 17)
    assert database.in_transaction
    database.execute("ROLLBACK")
    assert rows(database, "SELECT name FROM sqlite_master") == [("writes",)]
    assert rows(database, "SELECT * FROM writes") == []
    database.execute("BEGIN")
    guard.admit("orders/42", 1)
    database.execute("COMMIT")
    assert guard.floor("orders/42") == 1


def test_reading_the_floor_makes_no_table(database: Database) -> None:
    guard = SqliteGuard(database)
    assert guard.floor("orders/42") == 0
    database.execute("BEGIN")
    guard.admit("orders/42", 17, shared=True)
    database.execute("COMMIT")
    assert rows(database, "SELECT name FROM sqlite_master") == [("writes",)]


@pytest.mark.parametrize("shared", [False, True])
def test_outside_a_transaction_admit_refuses_and_writes_nothing(
    database: Database, shared: bool
) -> None:
    with pytest.raises(UnsupportedError, match=r"outside a transaction.*execute BEGIN"):
        SqliteGuard(database).admit("orders/42", 17, shared=shared)
    assert rows(database, "SELECT name FROM sqlite_master") == [("writes",)]


def test_nonsense_is_refused_before_the_connection_is_touched() -> None:
    class Untouchable:
        @property
        def in_transaction(self) -> bool:
            raise AssertionError("touched")

        def cursor(self) -> Any:
            raise AssertionError("touched")

    guard = SqliteGuard(Untouchable())
    for name, token in (("orders/42", 0), ("orders/42", True), ("orders//42", 17)):
        with pytest.raises(ValueError, match=r"is not a token|is not a valid name"):
            guard.admit(name, token)


def test_the_default_mode_of_sqlite3_opens_the_transaction_as_for_any_write(
    tmp_path: Path,
) -> None:
    with closing(sqlite3.connect(tmp_path / "orders.db")) as connection:
        guard = SqliteGuard(connection)
        guard.admit("orders/42", 18)
        connection.rollback()
        assert rows(connection, "SELECT name FROM sqlite_master") == []
        with connection:
            guard.admit("orders/42", 17)
            assert connection.in_transaction
        connection.rollback()
        assert guard.floor("orders/42") == 17


def test_a_refusal_closes_the_transaction_it_opened_and_no_other(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "orders.db")) as connection:
        guard = SqliteGuard(connection)
        with connection:
            guard.admit("orders/42", 17)
        with pytest.raises(StaleTokenError):
            guard.admit("orders/42", 16)
        assert not connection.in_transaction
        connection.execute("BEGIN")
        with pytest.raises(StaleTokenError):
            guard.admit("orders/42", 16)
        assert connection.in_transaction


def test_a_shared_admit_leaves_no_transaction_open_behind_a_reader(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "orders.db")) as connection:
        with pytest.raises(UnsupportedError):
            SqliteGuard(connection).admit("orders/42", 17, shared=True)
        assert not connection.in_transaction


def test_autocommit_of_later_pythons_is_not_taken_for_the_default_mode(tmp_path: Path) -> None:
    if sys.version_info >= (3, 12):
        connection = sqlite3.connect(tmp_path / "orders.db", autocommit=True)
    else:
        connection = sqlite3.connect(tmp_path / "orders.db", factory=LaterConnection)
    with closing(connection), pytest.raises(UnsupportedError, match="outside a transaction"):
        SqliteGuard(connection).admit("orders/42", 17)


class LaterConnection(sqlite3.Connection):
    autocommit = True


def test_a_floor_outlives_the_connection(tmp_path: Path) -> None:
    for library in LIBRARIES:
        path = tmp_path / f"{library}.db"
        with closing(open_database(library, path)) as first:
            first.execute("BEGIN")
            SqliteGuard(first).admit("orders/42", 17)
            first.execute("COMMIT")
        with closing(open_database(library, path)) as second:
            second.execute("BEGIN")
            with pytest.raises(StaleTokenError):
                SqliteGuard(second).admit("orders/42", 16)


def test_the_callers_row_factory_and_converters_do_not_matter(tmp_path: Path) -> None:
    with closing(
        sqlite3.connect(tmp_path / "orders.db", detect_types=sqlite3.PARSE_DECLTYPES)
    ) as connection:
        connection.row_factory = lambda cursor, row: {"unlike": "a tuple"}
        connection.text_factory = bytes
        sqlite3.register_converter("INTEGER", lambda raw: 0)
        try:
            floor_is_an_obstacle(connection)
        finally:
            sqlite3.register_converter("INTEGER", int)
        assert connection.execute("SELECT 1").fetchone() == {"unlike": "a tuple"}


def test_the_callers_row_trace_does_not_matter(tmp_path: Path) -> None:
    with closing(apsw.Connection(str(tmp_path / "orders.db"))) as connection:
        connection.row_trace = lambda cursor, row: {"unlike": "a tuple"}
        floor_is_an_obstacle(connection)
        assert connection.execute("SELECT 1").fetchone() == {"unlike": "a tuple"}


def floor_is_an_obstacle(connection: Database) -> None:
    guard = SqliteGuard(connection)
    connection.execute("BEGIN")
    guard.admit("orders/42", 17)
    with pytest.raises(StaleTokenError):
        guard.admit("orders/42", 16)


def test_what_the_library_raises_reaches_the_caller(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "orders.db")) as connection:
        connection.execute("CREATE TABLE lockfast_floors (something, else_)")
        with pytest.raises(sqlite3.OperationalError, match="no such column"):
            SqliteGuard(connection).admit("orders/42", 17)
        assert not connection.in_transaction


def test_an_error_on_which_sqlite_rolls_back_by_itself_is_not_hidden(tmp_path: Path) -> None:
    """A full disk causes this sometimes; a trigger causes it always."""
    with closing(sqlite3.connect(tmp_path / "orders.db")) as connection:
        with connection:
            SqliteGuard(connection).admit("orders/42", 17)
        connection.execute(
            "CREATE TRIGGER veto BEFORE INSERT ON lockfast_floors "
            "BEGIN SELECT RAISE(ROLLBACK, 'vetoed'); END"
        )
        with pytest.raises(sqlite3.IntegrityError, match="vetoed"):
            SqliteGuard(connection).admit("orders/42", 18)
        assert not connection.in_transaction


Write = tuple[int, bool]


@pytest.mark.parametrize("library", LIBRARIES)
@given(writes=st.lists(st.tuples(st.integers(1, 8), st.booleans()), max_size=12))
def test_the_floor_is_the_newest_token_that_was_committed(
    library: str, writes: list[Write]
) -> None:
    newest = 0
    with closing(open_database(library, ":memory:")) as database:
        guard = SqliteGuard(database)
        for token, commits in writes:
            database.execute("BEGIN")
            try:
                guard.admit("orders/42", token)
            except StaleTokenError:
                assert token < newest
            else:
                assert token >= newest
                newest = token if commits else newest
            database.execute("COMMIT" if commits else "ROLLBACK")
            assert guard.floor("orders/42") == newest
