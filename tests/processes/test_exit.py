"""An interpreter that exits never hangs, and its locks are free at once."""

from __future__ import annotations

import pytest

from tests.processes import roles
from tests.processes.crew import Crew

BOUND_S = 15.0
"""For an exit that should take milliseconds; a hang would last for ever."""

WAYS = [
    ("while holding", 0),
    ("waiting in a daemon thread", 0),
    ("watching in a daemon thread", 0),
    ("client forgotten", 0),
    ("lease forgotten", 0),
    ("sys.exit in a block", 3),
    ("exception in a block", 1),
]


@pytest.mark.parametrize(("how", "code"), WAYS)
def test_lock_is_free_after_a_normal_exit(crew: Crew, how: str, code: int) -> None:
    """The next acquire succeeds without waiting."""
    client = crew.client()
    with client.lock("another's"):
        child = crew.start(roles.end, how)
        child.hears("ready")
        child.tell("end")

        assert child.finish(BOUND_S) == code

        assert "Traceback" not in child.errors() or how == "exception in a block"
        assert [info.name for info in client.list()] == ["another's"]
        assert client.inspect("another's").waiting_count == 0


@pytest.mark.parametrize(
    ("how", "code"), [("return", 0), ("sys.exit", 3), ("exception", 1), ("client closed", 0)]
)
def test_lock_is_free_after_asyncio_has_ended(crew: Crew, how: str, code: int) -> None:
    client = crew.client()
    with client.lock("another's"):
        child = crew.start(roles.end_under_asyncio, how)
        child.hears("ready")
        child.tell("end")

        assert child.finish(BOUND_S) == code

        assert [info.name for info in client.list()] == ["another's"]
        assert client.inspect("another's").waiting_count == 0


def test_abrupt_exit_is_noticed_by_the_next_who_waits(crew: Crew) -> None:
    """os._exit runs no Python code; it is detected like any other death."""
    child = crew.start(roles.end, "os._exit")
    child.hears("ready")
    child.tell("end")
    assert child.finish(BOUND_S) == 4

    with crew.client().lock("kept"):
        pass


@pytest.mark.parametrize("role", [roles.end, roles.end_under_asyncio])
def test_exit_while_the_store_cannot_be_reached(crew: Crew, role: object) -> None:
    """Another process is stopped inside a transaction, and the exit still succeeds."""
    client = crew.client()
    with client.lock("another's"):
        child = (
            crew.start(roles.end, "while holding")
            if role is roles.end
            else crew.start(roles.end_under_asyncio, "return")
        )
        child.hears("ready")
        stopped = crew.start(roles.shut_gate)
        stopped.await_stop()

        child.tell("end")
        assert child.finish(BOUND_S) == 0

        stopped.go_on()
        stopped.hears("open")
