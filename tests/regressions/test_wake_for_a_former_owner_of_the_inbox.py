"""A waiter mistook another session's grant for its own: two clients held the lock.

On the embedded store an inbox is a port. When a process dies its port is free and may be reused by
a session opened later, while the store still has it with the dead session. A step that then granted
claim 1 of the dead session notified the new owner of the port in the same process, and claim 1 of
that session believed it.
"""

from __future__ import annotations

from lockfast.core.commands import WAKE_GRANTED, Place, Queued, Wake
from lockfast.flow.holding import Ask, Holding, Phase
from lockfast.flow.session import Session
from lockfast.runtimes.platform import now_ms
from lockfast.runtimes.threads import ThreadsRuntime
from lockfast.stores.memory import MemoryStore, MemoryTable


def is_held(holding: Holding) -> bool:
    return holding.phase is Phase.HELD


def test_wake_of_another_session_is_not_ours() -> None:
    runtime = ThreadsRuntime()
    session = Session(runtime, 30_000, "owner", "")
    session.attach(MemoryStore(MemoryTable(now_ms), runtime))
    waiting = Holding(Ask((Place("lock", "orders/42", "exclusive"),), 30_000), "actor")
    session.register(waiting)
    session.queued(waiting, Queued((), 30_000))

    session._deliver(Wake(session.listener.inbox, "dead", waiting.n, WAKE_GRANTED, 17))
    assert not is_held(waiting)
    assert session.take_inbox() == []

    session._deliver(Wake(session.listener.inbox, session.id, waiting.n, WAKE_GRANTED, 18))
    assert is_held(waiting)
    session.listener.close()
