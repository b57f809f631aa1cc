"""The SQLite guard between connections and threads that write concurrently."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from lockfast.errors import StaleTokenError
from lockfast.guards import SqliteGuard
from tests.guards.databases import LIBRARIES, Database, Overtaken, open_database, rows

Connect = Callable[..., Database]


@pytest.fixture(params=[(each, mode) for each in LIBRARIES for mode in ("delete", "wal")], ids=str)
def connect(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Connect]:
    """Opens connections to one file, with either library and either kind of journal."""
    library, journal = request.param
    with ExitStack() as opened:

        def open_another(*, wait_ms: int = 0) -> Database:
            database = open_database(library, tmp_path / "orders.db", wait_ms=wait_ms)
            return opened.enter_context(closing(database))

        setup = open_another()
        rows(setup, f"PRAGMA journal_mode = {journal}")
        setup.execute("CREATE TABLE writes (resource TEXT, token INTEGER)")
        yield open_another


def test_while_one_admission_is_open_no_other_connection_passes(connect: Connect) -> None:
    """The first statement of admit takes the write lock, although BEGIN did not."""
    slow, fast = connect(), connect()
    fast.execute("BEGIN")
    SqliteGuard(fast).admit("orders/42", 17)
    slow.execute("BEGIN")
    with pytest.raises(Exception, match="database is locked"):
        SqliteGuard(slow).admit("orders/42", 16)
    fast.execute("COMMIT")
    with pytest.raises(StaleTokenError):
        SqliteGuard(slow).admit("orders/42", 16)


def test_admit_holds_the_write_lock_even_when_it_raises_no_floor(connect: Connect) -> None:
    """A second write under the same token is as protected as the first."""
    holder, other = connect(), connect()
    for _ in range(2):
        holder.execute("BEGIN")
        SqliteGuard(holder).admit("orders/42", 17)
        with pytest.raises(Exception, match="database is locked"):
            other.execute("BEGIN IMMEDIATE")
        holder.execute("COMMIT")


def test_readers_do_not_take_the_write_lock(connect: Connect) -> None:
    reader, writer = connect(), connect()
    admit_and_commit(writer, 17)
    reader.execute("BEGIN")
    SqliteGuard(reader).admit("orders/42", 18, shared=True)
    writer.execute("BEGIN IMMEDIATE")


def test_a_transaction_that_read_too_early_cannot_pass_on_what_it_saw(tmp_path: Path) -> None:
    for library in LIBRARIES:
        with ExitStack() as opened:
            slow, fast = (
                opened.enter_context(closing(open_database(library, tmp_path / library)))
                for _ in range(2)
            )
            rows(fast, "PRAGMA journal_mode = wal")
            admit_and_commit(fast, 15)
            slow.execute("BEGIN")
            assert SqliteGuard(slow).floor("orders/42") == 15
            admit_and_commit(fast, 17)
            with pytest.raises(Exception, match="database is locked"):
                SqliteGuard(slow).admit("orders/42", 16)


def test_the_write_lock_is_held_before_the_floor_is_read(connect: Connect) -> None:
    """Also when another connection has just created the table."""
    slow, fast = connect(), connect()
    looks: list[str] = []

    def make_the_table_first() -> None:
        admit_and_commit(fast, 15)
        # Now our own connection knows the table, and creating it again writes nothing.
        rows(slow, "SELECT * FROM lockfast_floors")

    def look() -> None:
        with pytest.raises(Exception, match="database is locked"):
            fast.execute("BEGIN IMMEDIATE")
        looks.append("locked")

    watched = Overtaken(slow, {"CREATE TABLE": make_the_table_first, "SELECT": look})
    for token in (16, 17):
        slow.execute("BEGIN")
        SqliteGuard(watched).admit("orders/42", token)
        slow.execute("COMMIT")
    assert looks == ["locked", "locked"]


def test_a_newer_token_counts_though_its_table_came_at_the_last_moment(connect: Connect) -> None:
    slow, fast = connect(), connect()
    overtaken = Overtaken(slow, {"CREATE TABLE": lambda: admit_and_commit(fast, 17)})
    slow.execute("BEGIN")
    with pytest.raises(StaleTokenError, match="16 is older than 17"):
        SqliteGuard(overtaken).admit("orders/42", 16)


def test_a_locked_database_is_not_mistaken_for_a_missing_table(connect: Connect) -> None:
    """Otherwise the caller would wait for the lock twice."""
    slow, fast = connect(), connect()
    admit_and_commit(fast, 15)
    fast.execute("BEGIN IMMEDIATE")
    slow.execute("BEGIN")
    watched = Overtaken(slow, {"CREATE TABLE": lambda: pytest.fail("tried to make the table")})
    with pytest.raises(Exception, match="database is locked"):
        SqliteGuard(watched).admit("orders/42", 16)


def admit_and_commit(database: Database, token: int) -> None:
    database.execute("BEGIN")
    SqliteGuard(database).admit("orders/42", token)
    database.execute("COMMIT")


def test_a_waiting_thread_is_refused_once_its_successor_has_committed(connect: Connect) -> None:
    slow, fast = connect(wait_ms=30_000), connect(wait_ms=30_000)
    outcome: list[str] = []
    trying = threading.Event()

    def write_late() -> None:
        slow.execute("BEGIN")
        trying.set()
        try:
            SqliteGuard(slow).admit("orders/42", 16)
        except StaleTokenError as refusal:
            outcome.append(f"refused by {refusal.floor}")
        slow.execute("ROLLBACK")

    fast.execute("BEGIN")
    SqliteGuard(fast).admit("orders/42", 17)
    thread = threading.Thread(target=write_late)
    thread.start()
    assert trying.wait(30)
    fast.execute("COMMIT")
    thread.join(30)
    assert outcome == ["refused by 17"]


def test_of_many_threads_with_one_token_exactly_one_writes_once(connect: Connect) -> None:
    connections = [connect(wait_ms=30_000) for _ in range(4)]
    start = threading.Barrier(len(connections))

    def race(database: Database) -> None:
        guard = SqliteGuard(database, tree=True)
        for token in range(1, 26):
            start.wait()
            database.execute("BEGIN")
            try:
                guard.admit("orders/42", token, once=True)
            except StaleTokenError:
                database.execute("ROLLBACK")
                continue
            database.execute("INSERT INTO writes VALUES ('orders/42', ?)", (token,))
            database.execute("COMMIT")

    threads = [threading.Thread(target=race, args=(each,)) for each in connections]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    written = rows(connections[0], "SELECT token FROM writes ORDER BY rowid")
    assert written == [(token,) for token in range(1, 26)]
