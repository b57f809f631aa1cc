"""A client whose only claim waits for an upgrade may be part of a deadlock.

As an optimization the search was skipped for a client with one claim, but a claim that is
converting holds and waits at once. Found by the trace of a seed that had changed.
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
