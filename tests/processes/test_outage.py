"""The store is unreachable: another process is stopped in the middle of a transaction."""

from __future__ import annotations

from tests.measuring import Measured
from tests.processes import roles
from tests.processes.crew import Crew

TTL_S = 2.0


def test_holder_is_told_in_time_and_recovers(crew: Crew, measured: Measured) -> None:
    """The lease is uncertain, then lost at its own deadline without any reply; then it recovers."""
    holder = crew.start(roles.hold_through_outage, TTL_S)
    token = int(holder.hears("held")[0])
    stopped = crew.start(roles.shut_gate)
    stopped.await_stop()
    holder.tell("look")

    before_deadline_ms = float(holder.hears("uncertain")[0])
    assert before_deadline_ms < 0
    late_ms = float(holder.hears("lost")[0])
    assert holder.hears("called-back") == ["True"]
    holder.hears("unavailable")

    stopped.go_on()
    stopped.hears("open")
    holder.tell("go on")
    assert int(holder.hears("again")[0]) > token
    assert holder.finish() == 0
    measured("from the deadline to `lost` with nothing answering", late_ms)


def test_release_and_close_are_bounded(crew: Crew, measured: Measured) -> None:
    """They give up within a few seconds, far below the TTL; nothing is left behind."""
    holder = crew.start(roles.close_during_outage)
    holder.hears("held")
    stopped = crew.start(roles.shut_gate)
    stopped.await_stop()
    holder.tell("close")

    released_ms = float(holder.hears("unknown")[0])
    closed_ms = float(holder.hears("closed")[0])
    assert released_ms < 20_000
    assert closed_ms < 20_000

    stopped.go_on()
    stopped.hears("open")
    holder.tell("exit")
    holder.hears("threads")
    assert holder.finish() == 0
    assert "Traceback" not in holder.errors()
    measured("release() with nothing answering", released_ms)
    measured("close() with nothing answering", closed_ms)
