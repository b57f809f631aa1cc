"""`max_hold` ended too late if the process was stopped while the lock was granted.

A waiter that learned of its grant from another thread of its process counted from that moment. The
store counts from the grant: after that span another may hold the lock, while the first still
considered itself the holder.
"""

from __future__ import annotations

from lockfast.core.commands import WAKE_GRANTED, Granted, Place, Queued, Wake
from lockfast.flow.holding import Ask, Holding, LeaseState, Phase
from lockfast.flow.session import Session
from lockfast.runtimes.threads import ThreadsRuntime
from lockfast.stores.memory import MemoryStore, MemoryTable


class Clock(ThreadsRuntime):
    at_ms = 1_000

    def now_ms(self) -> int:
        return self.at_ms


def test_span_counts_from_the_grant() -> None:
    clock = Clock()
    session = Session(clock, 30_000, "owner", "")
    session.attach(MemoryStore(MemoryTable(clock.now_ms), clock))
    ask = Ask((Place("lock", "orders/42", "exclusive"),), 30_000, max_hold_ms=1_000)
    waiting = Holding(ask, "actor")
    session.register(waiting)
    session.queued(waiting, Queued((), 30_000))

    clock.at_ms += 5_000  # stopped between the grant and its notification
    session._deliver(Wake(session.listener.inbox, session.id, waiting.n, WAKE_GRANTED, 17))
    assert waiting.phase is Phase.WAITING, "it is not known yet how long ago it was granted"
    assert [wake.n for wake in session.take_inbox()] == [waiting.n]

    session.apply_view(waiting.n, Granted(17, for_ms=5_000), clock.at_ms)
    assert session.state_of(waiting) is LeaseState.LOST
    session.listener.close()
