"""After a fork the child holds nothing, and the parent keeps its leases whatever the child does."""

from __future__ import annotations

import sqlite3
from contextlib import closing

import pytest

from tests.processes import roles
from tests.processes.crew import Crew

NAME = "orders/42"


def is_intact(crew: Crew) -> bool:
    with closing(sqlite3.connect(crew.directory / "locks.db")) as database:
        return database.execute("PRAGMA integrity_check").fetchall() == [("ok",)]


@pytest.mark.parametrize(
    ("how", "code"),
    [
        ("os._exit", 0),
        ("sys.exit", 0),
        ("exception", 1),
        ("kill", -9),
        ("close", 0),
        ("leave the block", 1),
    ],
)
def test_parent_holds_on_whatever_its_child_does(crew: Crew, how: str, code: int) -> None:
    """The child's lease is void, its own locks work, and its exit changes nothing."""
    parent = crew.start(roles.fork_while_holding, NAME, how)

    assert parent.hears("child") == ["lost", "True", "True", "forked", "forked", "forked"]
    parent.hears("child-held")
    assert parent.hears("child-ended") == [str(code)]

    assert parent.hears("mine") == ["held", "True"]
    assert parent.hears("renewed") == ["held"]
    parent.tell("release")
    parent.hears("released")
    assert parent.finish() == 0
    lease = crew.client().lock(NAME).try_acquire()
    assert lease is not None, "the parent's release did not arrive"
    lease.release()
    assert is_intact(crew)


def test_fork_in_the_middle_of_transactions(crew: Crew) -> None:
    """Whatever other threads were doing at the fork, the child's inherited client works."""
    forks = 60
    parent = crew.start(roles.fork_among_threads, forks)

    for _ in range(forks):
        assert parent.hears("child") == ["0"]

    assert parent.hears("done") == [], "no thread of the parent saw anything of it"
    assert parent.finish() == 0
    assert crew.client().list() == []
    assert is_intact(crew)


def test_pool_of_forked_workers(crew: Crew) -> None:
    parent = crew.start(roles.fork_a_pool)

    assert parent.hears("tokens") == ["60", "60"]
    assert parent.finish() == 0
    assert is_intact(crew)


def test_program_started_while_holding(crew: Crew) -> None:
    parent = crew.start(roles.run_a_program)

    assert parent.hears("held") == ["held"]
    assert parent.finish() == 0
    assert crew.client().list() == []
