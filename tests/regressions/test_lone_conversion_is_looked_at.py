"""A client whose only claim waits to become the writer may be part of a deadlock.

To save time the look for deadlocks was left out for a client with one claim: one claim that
holds and waits at once was forgotten. Found by the trace of a seed that had changed.
"""

from __future__ import annotations

import lockfast


def test_it_is_where_the_look_begins() -> None:
    with lockfast.connect("memory://lone-conversion") as client:
        lease = client.rwlock("book").update().acquire()
        (session,) = client._core.sessions()
        session.begin_conversion(lease._holding, session.runtime.signal())
        lease._holding.since_ms -= session.deadlock_after_ms
        assert [name for _, name in session.start_of_deadlock_look()] == ["book"]
        session.end_conversion(lease._holding)
        lease.release()
