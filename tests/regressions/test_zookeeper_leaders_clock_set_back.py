"""The clock of ZooKeeper's leader may be set back, as NTP does after a restart.

A client kept the bound that it had found before, which was too late from then on. It took every
`max_hold` and every closing for over as much earlier, for up to forty times as long, and was
granted the lock while its holder relied on it.
"""

from __future__ import annotations

import pytest

from lockfast.core import commands as c
from lockfast.stores.zookeeper.clock import LeadersClock
from tests.zookeeper.model import ModelNetwork, ModelServer
from tests.zookeeper.test_long_lines import Client

HOLD_MS = 2000
SET_BACK_MS = 60_000


class Steady(ModelNetwork):
    """A client whose own clocks are not set back with the server's."""

    ahead_us = 0

    def wall_us(self) -> int:
        return super().wall_us() + Steady.ahead_us


def test_a_holder_may_hold_for_as_long_as_it_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.zookeeper.test_long_lines.ModelNetwork", Steady)
    monkeypatch.setattr(Steady, "ahead_us", 0)
    server = ModelServer()
    holder, other = Client(server, "holder"), Client(server, "other")
    for client in (holder, other):
        assert isinstance(client.enter(), c.Granted)
        client.leave()
    server.now_us -= SET_BACK_MS * 1000
    monkeypatch.setattr(Steady, "ahead_us", SET_BACK_MS * 1000)
    other.send(c.Renew(other.id, 0, 0, 0))
    assert isinstance(holder.enter(2, max_hold_ms=HOLD_MS), c.Granted)
    assert isinstance(other.enter(2), c.Queued)
    assert isinstance(other.look(2), c.Queued)
    server.now_us += (HOLD_MS + 100) * 1000
    other.send(c.Renew(other.id, 0, 0, 0))
    assert isinstance(other.look(2), c.Granted)


@pytest.mark.parametrize("by_ms", [-3_600_000, -5000, 5000, 3_600_000])
def test_bounds_follow_a_clock_that_is_set(by_ms: int) -> None:
    clock = LeadersClock(0)
    clock.heard(5_000_000, 1000, 1002, is_first=True)
    clock.heard(5_001_000 + by_ms, 2000, 2002, is_first=False)
    for now_ms in (2002, 3000):
        true_ms = 5_001_000 + by_ms + now_ms - 2001
        assert true_ms - 100 <= clock.at_least_ms(now_ms) <= true_ms
        assert true_ms <= clock.at_most_ms(now_ms) <= true_ms + 100
    assert clock.doubt_ms(2002) >= 0
