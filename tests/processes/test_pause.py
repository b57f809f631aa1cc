"""A holder stopped past its TTL: another takes over, and the first can do no harm."""

from __future__ import annotations

from tests.measuring import Measured
from tests.processes import roles
from tests.processes.crew import Crew, now_ms, until

NAME = "orders/42"
TTL_S = 1.5


def test_woken_holder_knows_at_its_first_look_and_is_refused(
    crew: Crew, measured: Measured
) -> None:
    """SIGSTOP in the body: a waiter gets the lock within the TTL; the stopped one has lost it."""
    database = str(crew.directory / "orders.db")
    stopped = crew.start(roles.spin, NAME, TTL_S, database)
    old_token = int(stopped.hears("held")[0])
    waiter = crew.start(roles.write_under_lock, NAME, database)
    crew.await_waiting(NAME, 1)

    stopped_ms = now_ms()
    crew.stop_in_body(stopped)
    new_token, held_ms = waiter.hears("held")
    assert int(new_token) > old_token
    waiter.hears("wrote")
    # Its last keep-alive was before the stop, so the takeover may come sooner than this.
    until(lambda: now_ms() > stopped_ms + TTL_S * 1000 + 100, "the pause is longer than the TTL")
    stopped.go_on()

    verdict, deadline_ms = stopped.hears("woke")
    assert verdict == "lost"
    assert float(deadline_ms) < float(held_ms), "granted while the other still could believe"
    assert stopped.hears("check") == ["raised"]
    stopped.hears("refused")
    assert stopped.hears("release") == ["raised"]
    assert stopped.finish() == 0
    measured(
        f"from SIGSTOP to the waiter's lease, less the TTL of {TTL_S} s",
        float(held_ms) - stopped_ms - TTL_S * 1000,
    )


def test_woken_task_is_cancelled(crew: Crew) -> None:
    """The same under asyncio: the body is cancelled, the block ends with LeaseLostError."""
    stopped = crew.start(roles.sleep_in_task, NAME, TTL_S)
    old_token = stopped.hears("held")[0]
    waiter = crew.start(roles.hold, NAME)
    crew.await_waiting(NAME, 1)

    crew.stop_in_body(stopped)
    waiter.hears("held")
    stopped.go_on()

    assert stopped.hears("cancelled") == ["lost"]
    assert stopped.hears("lost") == [old_token, "cancelling", "0"]
    stopped.hears("went")
    assert stopped.finish() == 0
