"""A deadlock was not found if it led through the order of a queue.

The detector assumed that only conflicting claims block a waiter. But a queue stops at the first
claim that cannot be granted, so a reader also waits for an `update` ahead of it, and for the claims
that block that one. Later, a deadlock behind a retained claim was not found if another client
waited for its victims.
"""

from __future__ import annotations

import pytest

from lockfast.core import commands as c
from lockfast.core.deadlock import find_cycles
from lockfast.core.memory_rows import MemoryRows
from lockfast.core.table import Table


def place(name: str, mode: str) -> tuple[c.Place, ...]:
    return (c.Place("lock", name, mode),)


class World:
    def __init__(self) -> None:
        self.table = Table(MemoryRows())
        self.now_ms = 1000

    def enter(self, session: str, n: int, name: str, mode: str, *, block: int = 1) -> c.Reply:
        self.now_ms += 1
        self.table.apply(c.Open(session, 60_000, session), self.now_ms, 1)
        actor = session if block == 1 else ""
        command = c.Enter(session, n, place(name, mode), actor=actor, block=block)
        return self.table.apply(command, self.now_ms, 1)[0]

    def view(self, name: str) -> c.ResourceView:
        view = self.table.apply(c.Inspect("lock", name), self.now_ms, 1)[0]
        assert isinstance(view, c.ResourceView)
        return view


@pytest.mark.parametrize("bystander", [False, True])
@pytest.mark.parametrize("retained", [False, True])
def test_a_reader_behind_an_update_that_waits_is_deadlocked(
    retained: bool, bystander: bool
) -> None:
    world = World()
    assert isinstance(world.enter("one", 1, "a", "shared"), c.Granted)
    assert isinstance(world.enter("two", 1, "b", "update"), c.Granted)
    block, mode = (8, "exclusive") if retained else (1, "update")
    assert isinstance(world.enter("three", 1, "b", mode, block=block), c.Queued)
    assert isinstance(world.enter("one", 2, "b", "shared"), c.Queued)
    assert find_cycles([world.view("a"), world.view("b")]) == []
    assert isinstance(world.enter("two", 2, "a", "exclusive"), c.Queued)
    if bystander:  # waits for the deadlock, and none of its members waits for it
        assert isinstance(world.enter("four", 1, "b", "update"), c.Queued)
    (cycle,) = find_cycles([world.view("a"), world.view("b")])
    assert {"one", "two"} <= cycle.actors
    command = c.Break(cycle.victim.session, cycle.victim.n, cycle.witnesses)
    assert world.table.apply(command, world.now_ms, 1)[0] == c.Done()
    assert find_cycles([world.view("a"), world.view("b")]) == []


def test_who_waits_behind_a_queue_that_moves_is_not_deadlocked() -> None:
    world = World()
    assert isinstance(world.enter("one", 1, "a", "shared"), c.Granted)
    assert isinstance(world.enter("free", 1, "b", "update"), c.Granted)
    assert isinstance(world.enter("three", 1, "b", "update"), c.Queued)
    assert isinstance(world.enter("one", 2, "b", "shared"), c.Queued)
    assert find_cycles([world.view("a"), world.view("b")]) == []
