"""The end of a max_hold was counted from the granting client's estimate of the leader's clock.

The estimate may lag behind that clock, and other clients judged the end by theirs: they granted the
lock while its holder still relied on it. A client that learned of its grant later also took it for
younger than it was. Now the write itself dates the grant, and what a client knows of the leader's
clock are bounds (`stores/zookeeper/clock.py`). Of 800 simulated worlds with bounded holds and
clocks that drift, 9 had two holders; see `seeds/zookeeper-max-hold-by-an-estimate-940004597.toml`.
"""

from __future__ import annotations

import pytest

from lockfast.core import commands as c
from lockfast.stores.zookeeper.clock import DRIFT_SHARE, LeadersClock
from tests.zookeeper.model import ModelServer
from tests.zookeeper.test_long_lines import Client

HOLD_MS = 1000


def test_a_holder_with_a_slow_clock_may_hold_for_as_long_as_it_asked() -> None:
    server = ModelServer()
    slow, other = Client(server, "slow"), Client(server, "other")
    slow.send(c.Open(slow.id, 30_000, "owner"))
    slow.store.context.clock = LeadersClock(-HOLD_MS)
    assert isinstance(slow.enter(max_hold_ms=HOLD_MS, open=None), c.Granted)
    assert isinstance(other.enter(), c.Queued)
    server.now_us += 900 * HOLD_MS
    other.send(c.Renew(other.id, 0, 0, 0))  # so that it knows the time
    assert isinstance(other.look(), c.Queued)
    server.now_us += 200 * HOLD_MS
    other.send(c.Renew(other.id, 0, 0, 0))
    assert isinstance(other.look(), c.Granted)


def test_a_grant_is_never_taken_for_younger_than_it_is() -> None:
    server = ModelServer()
    holder, waiter = Client(server, "holder"), Client(server, "waiter")
    assert isinstance(holder.enter(), c.Granted)
    assert isinstance(waiter.enter(max_hold_ms=HOLD_MS), c.Queued)
    now_ms = server.now_us // 1000
    # The answer to its write has taken half a second.
    waiter.store.context.clock.heard(now_ms - 500, now_ms - 500, now_ms, is_first=True)
    server.now_us += 200_000
    holder.leave()
    server.now_us += 300_000
    reply = waiter.look()
    assert isinstance(reply, c.Granted)
    assert reply.for_ms >= 300


@pytest.mark.parametrize("drift", [-1 / DRIFT_SHARE, 0.0, 1 / DRIFT_SHARE])
def test_bounds_hold_although_clocks_drift(drift: float) -> None:
    """The leader's clock gains this on ours."""
    rate = 1 / (1 + drift)
    clock = LeadersClock(0)
    leader_ms = 5_000_000
    for takes_ms in (40, 3, 700, 1):
        leader_ms += 10_000
        sent_ms = int(leader_ms * rate)
        dated_ms = leader_ms + takes_ms // 2
        leader_ms += takes_ms
        clock.heard(dated_ms, sent_ms, int(leader_ms * rate), is_first=takes_ms == 40)
        for passed_ms in (0, 1, 500, 9000):
            now_ms = int((leader_ms + passed_ms) * rate)
            assert clock.at_least_ms(now_ms) <= leader_ms + passed_ms
            assert clock.at_most_ms(now_ms) >= leader_ms + passed_ms


def test_a_prompt_answer_gives_close_bounds() -> None:
    clock = LeadersClock(0)
    clock.heard(1000, 10, 700, is_first=True)
    assert clock.doubt_ms(700) > 690
    clock.heard(2000, 1010, 1011, is_first=False)
    assert clock.doubt_ms(1011) <= 4
