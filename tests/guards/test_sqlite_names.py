"""The SQLite guard's table, and hostile names."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockfast.core.names import check_name
from lockfast.errors import InvalidNameError, UnsupportedError
from lockfast.guards import SqliteGuard
from tests.guards.databases import LIBRARIES, Database, open_database, rows


@pytest.fixture(params=LIBRARIES)
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Database]:
    with closing(open_database(request.param, tmp_path / "orders.db")) as opened:
        yield opened


def test_plain_and_tree_floors_in_one_table_do_not_meet(database: Database) -> None:
    plain, tree = SqliteGuard(database), SqliteGuard(database, tree=True)
    database.execute("BEGIN")
    plain.admit("a/b", 20)
    tree.admit("a/b/c", 10)
    assert (plain.floor("a/b"), tree.floor("a/b"), plain.floor("a/b/c")) == (20, 10, 0)


def test_tables_of_different_names_do_not_meet(database: Database) -> None:
    orders, users = SqliteGuard(database, table="orders"), SqliteGuard(database, table="select")
    database.execute("BEGIN")
    orders.admit("42", 20)
    users.admit("42", 10)
    assert (orders.floor("42"), users.floor("42")) == (20, 10)


def test_a_temporary_table_cannot_stand_in_for_the_floors(database: Database) -> None:
    database.execute("CREATE TEMP TABLE lockfast_floors (scope, resource, floor)")
    database.execute("BEGIN")
    SqliteGuard(database).admit("orders/42", 17)
    assert rows(database, "SELECT * FROM temp.lockfast_floors") == []
    assert rows(database, "SELECT * FROM main.lockfast_floors") == [("name", "orders/42", 17)]


@pytest.mark.parametrize(
    "table",
    [
        "",
        "floors; DROP TABLE writes",
        'floors" (x); DROP TABLE writes; --',
        "main.floors",
        "sqlite_master",
        "SQLite_Floors",
        "1floors",
        "floors\n",
        "floors\x00",
        "flöörs",
        "x" * 64,
        None,
        17,
    ],
)
def test_a_table_name_that_is_more_than_a_name_is_refused(database: Database, table: Any) -> None:
    with pytest.raises(UnsupportedError, match="choose another name"):
        SqliteGuard(database, table=table)


NAMES = st.one_of(
    st.text(max_size=40),
    st.text(alphabet="a/.'\";-%_?\\ÅéE\u0301\x00", max_size=12),
    st.sampled_from(["'; DROP TABLE lockfast_floors; --", "ORDERS", "orders", "%", "_", "?1"]),
)


@pytest.mark.parametrize("library", LIBRARIES)
@given(names=st.lists(NAMES, max_size=10, unique=True))
def test_a_hostile_name_is_refused_or_is_exactly_itself(library: str, names: list[str]) -> None:
    with closing(open_database(library, ":memory:")) as database:
        guard = SqliteGuard(database)
        database.execute("BEGIN")
        admitted: dict[str, int] = {}
        for token, name in enumerate(names, start=1):
            try:
                guard.admit(name, token)
            except InvalidNameError:
                with pytest.raises(InvalidNameError):
                    check_name(name)
            else:
                admitted[name] = token
        assert {name: guard.floor(name) for name in admitted} == admitted
