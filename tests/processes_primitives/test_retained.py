"""Retained locks between processes."""

from __future__ import annotations

import pytest

from tests.processes.crew import Crew
from tests.processes_primitives import roles


@pytest.mark.parametrize("mode", ["lock", "read"])
def test_another_process_gets_it_when_it_is_wanted(crew: Crew, mode: str) -> None:
    """When idle, it is released at once; the keep-alive is ten seconds away."""
    keeper = crew.start(roles.keep, "a", mode)
    (token,) = keeper.hears("used")
    taker = crew.start(roles.take, "a", mode)
    taker.hears("ready")
    taker.tell("take")
    look = crew.client()
    crew.await_waiting("a", 1)
    assert not taker.is_talking(0), "somebody uses it"
    keeper.tell("release")
    keeper.hears("released")
    theirs, _ = taker.hears("got", within=8)
    assert int(theirs) > int(token)
    keeper.tell("again")
    (again,) = keeper.hears("used")
    assert int(again) > int(theirs)
    keeper.tell("release")
    keeper.hears("released")
    assert look.inspect("a").holder_count == 1, "it is kept"
    taker.tell("take")
    taker.hears("got", within=8)
    for child in (keeper, taker):
        child.tell("end")


def test_a_keeper_that_is_killed(crew: Crew) -> None:
    """An idle retained lock is not lost with its process."""
    keeper = crew.start(roles.keep, "a")
    keeper.hears("used")
    keeper.tell("release")
    keeper.hears("released")
    keeper.kill()
    taker = crew.start(roles.take, "a")
    taker.hears("ready")
    taker.tell("take")
    taker.hears("got", within=8)
    taker.tell("end")


def test_a_keeper_that_does_not_hear(crew: Crew) -> None:
    """The datagram is lost: the keep-alive reports that the lock is wanted."""
    keeper = crew.start(roles.keep, "a", ttl=1.0, deaf=True)
    keeper.hears("used")
    keeper.tell("release")
    keeper.hears("released")
    taker = crew.start(roles.take, "a")
    taker.hears("ready")
    taker.tell("take")
    taker.hears("got", within=8)
    taker.tell("end")
    keeper.tell("end")
