"""A page of locks, or of sessions, is read in a few flights, not one for each (ZooKeeper).

Each lock of a page was read after the one before it: 500 locks took longer than `connect_timeout`
on a busy machine, and `list()` failed.
"""

from __future__ import annotations

from collections.abc import Sequence

from lockfast.core import commands as c
from lockfast.runtimes.threads import run
from lockfast.stores.zookeeper import ZooKeeperStore
from lockfast.stores.zookeeper.transport import Answer, Flight
from tests.zookeeper.model import ModelNetwork

MANY = 100
FLIGHTS_MAX = 10
TIMEOUT_MS = 30_000


class Counting(ModelNetwork):
    flights = 0

    async def wait(self, flight: Flight, timeout_ms: int) -> Sequence[Answer]:
        self.flights += 1
        return await super().wait(flight, timeout_ms)


def test_few_flights() -> None:
    network = Counting()
    wire = ZooKeeperStore("zookeeper://model", "/lockfast/default", network).caller_wire()
    for i in range(MANY):
        session = f"s{i:03}"
        place = c.Place("lock", f"n{i:03}", "exclusive")
        opening = c.Open(session, TIMEOUT_MS, "")
        granted = run(wire.send(c.Enter(session, 1, (place,), open=opening), TIMEOUT_MS))
        assert isinstance(granted, c.Granted)
    network.flights = 0
    locks = run(wire.send(c.Listing("lock", "", "", MANY), TIMEOUT_MS))
    assert isinstance(locks, c.ListingReply)
    assert [view.name for view in locks.resources] == [f"n{i:03}" for i in range(MANY)]
    sessions = run(wire.send(c.Sessions("", MANY), TIMEOUT_MS))
    assert isinstance(sessions, c.SessionsReply)
    assert [view.session for view in sessions.sessions] == [f"s{i:03}" for i in range(MANY)]
    assert network.flights <= FLIGHTS_MAX
