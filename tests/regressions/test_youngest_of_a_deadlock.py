"""The victim of a deadlock was not always the youngest claim.

Ages were compared although the queues had been read at different times, and two claims that entered
one queue within a millisecond were ordered by the ids of their sessions.
"""

from __future__ import annotations

from lockfast.core import commands as c
from lockfast.core.deadlock import find_cycles
from lockfast.core.memory_rows import MemoryRows
from lockfast.core.table import Table
from lockfast.flow import deadlock
from lockfast.runtimes.threads import run

BOOK = c.Place("lock", "book", "exclusive")


def view(table: Table, name: str, at_ms: int) -> c.ResourceView:
    found, _ = table.apply(c.Inspect("lock", name), at_ms, 1)
    assert isinstance(found, c.ResourceView)
    return found


def test_ties_are_broken_by_the_order_of_the_queue() -> None:
    for reader, writer in (("a", "z"), ("z", "a")):
        table = Table(MemoryRows())
        for session in (reader, writer):
            table.apply(c.Open(session, 60_000, session), 1_000, 1)
        reading = (BOOK._replace(mode="shared"),)
        table.apply(c.Enter(reader, 1, reading, actor="r"), 1_000, 1)
        table.apply(c.Enter(writer, 1, (BOOK,), actor="w"), 1_000, 1)
        table.apply(c.Enter(reader, 2, reading, actor="r"), 1_000, 1)
        (cycle,) = find_cycles([view(table, "book", 1_000)])
        assert (cycle.victim.session, cycle.victim.n) == (reader, 2)


def test_ages_count_from_one_instant() -> None:
    """The queue of the older claim is read first, and that of the younger much later."""
    table = Table(MemoryRows())
    x, y = (c.Place("lock", name, "exclusive") for name in "xy")
    for session, held in (("one", x), ("two", y)):
        table.apply(c.Open(session, 60_000, session), 1_000, 1)
        table.apply(c.Enter(session, 1, (held,), actor=session), 1_000, 1)
    table.apply(c.Enter("one", 2, (y,), actor="one"), 2_000, 1)
    table.apply(c.Enter("two", 2, (x,), actor="two"), 2_010, 1)
    clock = 2_020

    async def send(command: c.Command) -> c.Reply:
        nonlocal clock
        reply, _ = table.apply(command, clock, 1)
        return reply

    def now_ms() -> int:
        nonlocal clock
        read, clock = clock, clock + 500
        return read

    for start in (("lock", "x"), ("lock", "y")):
        (cycle,) = run(deadlock.look(send, [start], now_ms))
        assert (cycle.victim.session, cycle.victim.n) == ("two", 2)
