"""The server's clock is changed: set back, it blocks nobody; set forward, the holder is told.

The clock cannot be set here, so steps are given another time than the server's: whatever was done
at a time far ahead then looks as if the clock had been set back since.
"""

from __future__ import annotations

import time
from contextlib import suppress

import pytest

import lockfast
from lockfast.core import commands as c
from lockfast.errors import LeaseLostError
from tests.postgresql.stepping import StoreSteps
from tests.servers.postgresql import PostgresServer

HOUR_MS = 3_600_000
LOCK = (c.Place("lock", "orders/42", "exclusive"),)
TTL = 0.6
PATIENCE_S = 30.0


def server_ms() -> int:
    return time.time_ns() // 1_000_000


def test_a_dead_holder_is_expelled_though_the_clock_was_set_back(server: PostgresServer) -> None:
    """By the server's clock it lives for another hour, but its renewal counter stands still."""
    url = server.url()
    steps = StoreSteps(url, watched=False)
    ahead_ms = server_ms() + HOUR_MS
    steps.apply(c.Enter("dead", 1, LOCK, open=c.Open("dead", 600, "a dead one")), ahead_ms, 1)
    with lockfast.connect(url, ttl=TTL) as client:
        lease = client.lock("orders/42").acquire(timeout=PATIENCE_S)
        ended = {info.session: info.ended for info in client.sessions()}
        assert ended["dead"] == "its keep-alives stopped"
        lease.release()
    steps.close()


@pytest.mark.parametrize("priority", [0, 1])
def test_claims_keep_their_order_though_the_clock_was_set_back(
    server: PostgresServer, priority: int
) -> None:
    """Ranks are instants of the server's clock; a claim must not enter before those that wait."""
    steps = StoreSteps(server.url(), watched=False)
    ahead_ms = server_ms() + HOUR_MS
    head_start_ms = 1000 * priority

    def enter(session: str, at_ms: int) -> c.Reply:
        opening = c.Open(session, 2 * HOUR_MS, session)
        command = c.Enter(
            session, 1, LOCK, priority=priority, head_start_ms=head_start_ms, open=opening
        )
        return steps.apply(command, at_ms, 1)[0]

    enter("holder", ahead_ms)
    enter("first", ahead_ms)
    for late, former in (("second", "first"), ("third", "second")):
        reply = enter(late, ahead_ms - HOUR_MS // 2)
        assert isinstance(reply, c.Queued)
        assert [blocker.session for blocker in reply.ahead] == [former]
    steps.close()


def test_a_living_holder_is_not_expelled(server: PostgresServer) -> None:
    """It keeps being renewed, so its counter moves, whatever its deadline says."""
    url = server.url()
    with lockfast.connect(url, ttl=TTL) as holder, lockfast.connect(url, ttl=TTL) as client:
        held = holder.lock("orders/42").acquire()
        # On a busy machine it may be renewed too late and expire, but nobody may expel it.
        with suppress(lockfast.AcquireTimeoutError, LeaseLostError):
            client.lock("orders/42").acquire(timeout=4 * TTL).release()
        assert "its keep-alives stopped" not in {info.ended for info in client.sessions()}
        with suppress(LeaseLostError):
            held.release()


def test_a_holder_is_told_when_the_clock_was_set_forward(server: PostgresServer) -> None:
    """Another client took over the lock: the next keep-alive says so, well before the TTL ends."""
    url = server.url()
    steps = StoreSteps(url, watched=False)
    with lockfast.connect(url, ttl=6) as holder:
        held = holder.lock("orders/42").acquire()
        ahead_ms = server_ms() + HOUR_MS
        taken, _ = steps.apply(
            c.Enter("new", 1, LOCK, open=c.Open("new", 600, "n")), ahead_ms, ahead_ms * 1000
        )
        assert isinstance(taken, c.Granted)
        assert taken.token > held.token
        assert held.lost.wait(6)
        with pytest.raises(LeaseLostError):
            held.check()
    steps.close()
