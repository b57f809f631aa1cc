"""A new deadlock was found up to ten seconds late if another claim of the client waited long.

Searches became rarer with the longest wait of the whole client, and a newer claim of another actor
had to wait for the next search.
"""

from __future__ import annotations

from lockfast.core.commands import Open, Place, Queued
from lockfast.flow.holding import Ask, Holding, Phase
from lockfast.flow.session import Session
from lockfast.runtimes.threads import ThreadsRuntime
from lockfast.stores.memory import MemoryStore, MemoryTable


class Clock(ThreadsRuntime):
    at_ms = 1_000

    def now_ms(self) -> int:
        return self.at_ms


def test_each_claim_is_looked_at_in_its_own_time() -> None:
    clock = Clock()
    session = Session(clock, 30_000, "owner", "")
    session.attach(MemoryStore(MemoryTable(clock.now_ms), clock))
    session.deadlock_after_ms = 1_000
    assert isinstance(session.opening(), Open)

    def claim(name: str, actor: str, phase: Phase) -> Holding:
        holding = Holding(Ask((Place("lock", name, "exclusive"),), 30_000), actor)
        session.register(holding)
        if phase is Phase.WAITING:
            session.queued(holding, Queued((), 60_000))
        else:
            holding.phase = phase
        return holding

    claim("a", "patient", Phase.HELD)
    claim("b", "patient", Phase.WAITING)
    looks = 0
    while clock.at_ms < 20_500:
        clock.at_ms = session.deadlock_at_ms or 0
        looks += session.start_of_deadlock_look() != []
    assert looks <= 6, "looks grow rarer while nothing new comes"

    claim("x", "one", Phase.HELD)
    claim("y", "one", Phase.WAITING)
    began_ms = clock.at_ms
    while ("lock", "x") not in (start := session.start_of_deadlock_look()):
        assert session.deadlock_at_ms is not None
        clock.at_ms = session.deadlock_at_ms
    assert clock.at_ms - began_ms <= 1_100
    assert ("lock", "a") not in start, "and it has not to be looked at again for this"
    session.listener.close()
