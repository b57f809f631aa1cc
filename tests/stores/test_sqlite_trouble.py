"""Faults of a lock database in use: a typed error, nothing lost, and full recovery."""

from __future__ import annotations

import os
import shutil
import signal
import sqlite3
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import lockfast
from lockfast import LeaseState, StoreError, StoreUnavailableError
from lockfast.stores.sqlite import driver
from tests.processes.crew import Crew, until
from tests.stores import roles

PATIENCE = 30


def file_of(client: lockfast.Client) -> Any:
    """Return the file behind a client."""
    return client._core.store._file  # type: ignore[attr-defined]


# ── a full disk ──────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("library", ["stdlib", "apsw"])
def test_a_full_database_loses_nothing(quick_path: Path, library: str) -> None:
    """As SQLite reports a full disk; simulated with a limit on its pages."""
    with lockfast.connect(
        f"sqlite://{quick_path}/locks.db?driver={library}", ttl=20, connect_timeout=0.1
    ) as client:
        leases = [client.lock("first").acquire()]
        file = file_of(client)
        with file._mutex:  # the keeper uses the same connection
            (pages,) = file._connection.execute("PRAGMA page_count").fetchone()
            file._connection.execute(f"PRAGMA max_page_count = {pages + 3}").fetchall()
        with pytest.raises(StoreUnavailableError, match=r"disk is full.*nothing was lost"):
            for i in range(5000):
                leases.append(client.lock(f"lock number {i}").acquire())
        assert len(leases) > 1
        assert {info.name for info in client.list()} == {lease.name for lease in leases}
        with file._mutex:
            file._connection.execute("PRAGMA max_page_count = 1000000").fetchall()
        with client.lock("one more"):
            pass
        for lease in leases:
            lease.check()
            lease.release()
        assert client.list() == []


def test_files_that_cannot_grow_lose_nothing(crew: Crew) -> None:
    """A real limit of the operating system, on a separate process."""
    child = crew.start(roles.fill_disk)
    kind, _, what = child.hears_anything().partition(" ")
    assert kind in ("StoreUnavailableError", "OutcomeUnknownError")
    assert "disk" in what
    child.tell("go on")
    (count,) = child.hears("fine")
    assert int(count) > 1
    assert child.finish() == 0


# ── a file deleted or replaced ───────────────────────────────────────────────────────


def delete_all(directory: Path) -> None:
    for path in directory.iterdir():
        path.unlink()


def delete_database(directory: Path) -> None:
    (directory / "locks.db").unlink()


def delete_but_gate(directory: Path) -> None:
    for path in directory.iterdir():
        if not path.name.endswith("-gate"):
            path.unlink()


def replace_database(directory: Path) -> None:
    with lockfast.connect(f"sqlite://{directory.parent}/other.db") as client, client.lock("a"):
        pass
    (directory.parent / "other.db").rename(directory / "locks.db")


def move_directory(directory: Path) -> None:
    directory.rename(directory.parent / "away")
    directory.mkdir()


def delete_directory(directory: Path) -> None:
    shutil.rmtree(directory)


def is_told(client: lockfast.Client) -> bool:
    """Return True if it knows that its file is gone."""
    try:
        lease = client.lock("c").try_acquire()
    except StoreError:
        return True
    assert lease is not None
    lease.release()
    return False


@pytest.mark.parametrize(
    "harm",
    [
        delete_all,
        delete_database,
        delete_but_gate,
        replace_database,
        move_directory,
        delete_directory,
    ],
)
def test_a_file_that_goes_away_under_a_client(
    quick_path: Path, harm: Callable[[Path], None]
) -> None:
    """The client gets an error, its leases end by its own clock, and reconnecting is enough."""
    before = threading.active_count()
    directory = quick_path / "locks"
    url = f"sqlite://{directory}/locks.db"
    client = lockfast.connect(url, ttl=0.5, connect_timeout=0.1)
    lease = client.lock("a").acquire()
    harm(directory)
    until(lambda: is_told(client), "it is seen that the file is gone")
    calls: list[Callable[[], object]] = [
        client.lock("b").acquire,
        client.lock("b").try_acquire,
        lambda: client.inspect("a"),
    ]
    for call in calls:
        with pytest.raises(StoreError, match=r"deleted or replaced.*connect again"):
            call()
    assert lease.lost.wait(PATIENCE)
    again = lockfast.connect(url)
    later = again.lock("a").acquire(timeout=10)
    assert later.token > lease.token
    with pytest.raises(StoreError, match="deleted or replaced"):
        client.lock("b").acquire()
    client.close()
    until(lambda: threading.active_count() == before + 1, "its keepers have stopped")
    with again.lock("b"):
        pass
    assert later.state is LeaseState.HELD
    later.release()
    again.close()


# ── a gate that stays shut ───────────────────────────────────────────────────────────


def test_a_process_stopped_inside_the_gate_is_named(crew: Crew) -> None:
    """Others get an error with its pid and can still read; all continue when it continues."""
    client = crew.client(ttl=20, connect_timeout=0.3)
    kept = client.lock("kept").acquire()
    stopped = crew.start(roles.stop_inside)
    stopped.await_stop()
    assert client.inspect("kept").holder_count == 1, "looking on needs no gate"
    assert client.inspect("inside").holder_count == 0
    calls: list[Callable[[], object]] = [
        client.lock("b").acquire,
        client.lock("b").try_acquire,
        lambda: client.lock("b").acquire(timeout=0.1),
    ]
    for call in calls:
        with pytest.raises(StoreUnavailableError) as caught:
            call()
        assert f"process {stopped.pid} holds the write lock" in str(caught.value)
        assert "continue it or kill it" in str(caught.value)
    stopped.go_on()
    stopped.hears("held")
    with client.lock("b").acquire(timeout=PATIENCE):
        pass
    assert client.lock("inside").try_acquire() is None
    assert kept.state is not LeaseState.LOST
    kept.release()
    stopped.tell("end")
    assert stopped.finish() == 0


def test_a_process_killed_inside_the_gate_leaves_no_half_of_a_step(crew: Crew) -> None:
    client = crew.client(connect_timeout=0.3)
    stopped = crew.start(roles.stop_inside)
    stopped.await_stop()
    with pytest.raises(StoreUnavailableError, match=str(stopped.pid)):
        client.lock("inside").acquire()
    stopped.kill()
    with client.lock("inside").acquire(timeout=PATIENCE):
        pass


def test_a_waiter_at_the_gate_can_be_interrupted(crew: Crew) -> None:
    client = crew.client(connect_timeout=PATIENCE)
    with client.lock("a"):
        pass
    stopped = crew.start(roles.stop_inside)
    stopped.await_stop()
    main = threading.get_ident()
    threading.Timer(0.2, lambda: signal.pthread_kill(main, signal.SIGINT)).start()
    with pytest.raises(KeyboardInterrupt):
        client.lock("a").acquire()
    os.kill(stopped.pid, signal.SIGCONT)
    stopped.hears("held")
    with client.lock("a").acquire(timeout=PATIENCE):
        pass
    until(lambda: client.inspect("a").waiting_count == 0, "the interrupted claim is given back")


def test_another_program_that_locks_the_database_is_told_of(
    quick_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`sqlite3` used by hand ignores the gate."""
    monkeypatch.setattr(driver, "BUSY_MS", 100)
    with lockfast.connect(f"sqlite://{quick_path}/locks.db", connect_timeout=0.1) as client:
        leases = [client.lock("first").acquire()]
        by_hand = sqlite3.connect(quick_path / "locks.db", isolation_level=None)
        by_hand.execute("BEGIN IMMEDIATE")
        with pytest.raises(
            StoreUnavailableError, match="another program keeps the database locked"
        ):
            for i in range(1000):
                leases.append(client.lock(f"lock number {i}").acquire())
        by_hand.execute("ROLLBACK")
        by_hand.close()
        with client.lock("one more").acquire(timeout=PATIENCE):
            pass
        assert {info.name for info in client.list()} == {lease.name for lease in leases}
        for lease in leases:
            lease.release()


# ── between processes ────────────────────────────────────────────────────────────────


def test_a_wake_reaches_a_waiter_in_another_process(crew: Crew) -> None:
    holder = crew.start(roles.hold)
    (token,) = holder.hears("held")
    waiter = crew.start(roles.wait_for)
    waiter.hears("ready")
    crew.await_waiting("a", 1)
    holder.tell("release")
    (later,) = waiter.hears("held")
    assert int(later) > int(token)
    holder.hears("released")
