"""The order of arrival among clients whose clocks differ."""

from __future__ import annotations

from collections.abc import Iterator
from time import time

import pytest

from lockfast.core import commands as c
from lockfast.runtimes.threads import run
from lockfast.stores.derived.steps import Instant
from lockfast.stores.etcd import EtcdStore
from lockfast.stores.etcd.wire import EtcdWire
from tests.etcd.harness import address_of
from tests.servers.etcd import EtcdCluster

BEHIND_MS = 30_000


class Machine:
    """A client with its own clock."""

    def __init__(self, url: str, session: str, by_ms: int) -> None:
        self.store = EtcdStore(address_of(url))
        wire = self.store.caller_wire()
        assert isinstance(wire, EtcdWire)
        self._wire = wire
        self._session, self._by_ms = session, by_ms
        assert self.send(c.Open(session, 60_000, session)) == c.Done(found=False)

    def send(self, command: c.Command) -> c.Reply:
        wall_ms = int(time() * 1000) + self._by_ms
        instant = Instant(wall_ms, wall_ms * 1000)
        until_ms = self._wire.gateway.until_ms(5000)
        return run(self._wire.step(command, until_ms, instant)).reply

    def enter(self, n: int, *places: c.Place, priority: int = 0) -> c.Reply:
        head_start_ms = priority * 1000
        return self.send(
            c.Enter(self._session, n, places, priority=priority, head_start_ms=head_start_ms)
        )


@pytest.fixture
def machines(node: EtcdCluster) -> Iterator[tuple[Machine, Machine]]:
    url = node.url()
    right, behind = Machine(url, "r", 0), Machine(url, "b", -BEHIND_MS)
    yield right, behind
    right.store.close()
    behind.store.close()


def waiting(machine: Machine) -> list[tuple[str, int]]:
    view = machine.send(c.Inspect("lock", "orders/42"))
    assert isinstance(view, c.ResourceView)
    return [(claim.session, claim.n) for claim in view.waiting]


@pytest.mark.parametrize("mode", ["exclusive", "shared"])
@pytest.mark.parametrize("several", [False, True])
def test_a_clock_that_is_behind_overtakes_nobody(
    machines: tuple[Machine, Machine], mode: str, several: bool
) -> None:
    right, behind = machines
    held = c.Place("lock", "orders/42", "exclusive")
    assert isinstance(right.enter(1, held), c.Granted)
    asked = [c.Place("lock", "orders/42", mode)]
    if several:
        asked.append(c.Place("lock", "orders/43", mode))
    for n in (2, 3):
        assert isinstance(right.enter(n, *asked), c.Queued)
        assert isinstance(behind.enter(n, *asked), c.Queued)
    assert waiting(right) == [("r", 2), ("b", 2), ("r", 3), ("b", 3)]


@pytest.mark.parametrize("queue", [True, False])
def test_a_clock_that_is_behind_passes_no_reservation(
    machines: tuple[Machine, Machine], queue: bool
) -> None:
    """The claim on both locks was there first, so it gets the free one as soon as both are free."""
    right, behind = machines
    here, there = (c.Place("lock", f"orders/{n}", "exclusive") for n in (42, 43))
    assert isinstance(right.enter(1, here), c.Granted)
    assert isinstance(right.enter(2, here, there), c.Queued)
    reply = behind.send(c.Enter("b", 2, (there,), queue=queue))
    assert isinstance(reply, c.Queued if queue else c.Busy)


def test_a_clock_that_is_behind_leaves_priorities_alone(machines: tuple[Machine, Machine]) -> None:
    right, behind = machines
    place = c.Place("lock", "orders/42", "exclusive")
    assert isinstance(right.enter(1, place), c.Granted)
    assert isinstance(right.enter(2, place), c.Queued)
    assert isinstance(right.enter(3, place, priority=9), c.Queued)
    assert isinstance(behind.enter(2, place, priority=9), c.Queued)
    assert waiting(right) == [("r", 3), ("b", 2), ("r", 2)]
