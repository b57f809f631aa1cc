"""etcd: a claim that had reserved a resource was granted during the lock_delay of its dead holder.

Where claims vanish with their session, the delay begins when a client next reads the resource. A
claim on several resources that had a reservation there, and whose last resource became free, was
granted although that read had closed the other one. ZooKeeper, built alike, did not have this bug.
"""

from __future__ import annotations

import pytest

import tests.etcd.model as etcd
import tests.zookeeper.model as zookeeper
from lockfast.conformance.commands import MakeSteps, replay
from lockfast.core.commands import Command, Enter, Expel, Leave, Look, Open, Place
from lockfast.sim.promises import Step
from tests.etcd.test_reference import StoreSteps as EtcdSteps
from tests.etcd.test_reference import reference
from tests.zookeeper.test_reference import StoreSteps as ZooKeeperSteps

DELAY_MS = 50
STORES: dict[str, MakeSteps] = {
    "etcd": lambda: EtcdSteps("etcd://model", etcd.ModelNetwork()),
    "zookeeper": lambda: ZooKeeperSteps(zookeeper.ModelNetwork()),
}


def enter(session: str, ttl_ms: int, leaf: str, mode: str, delay_ms: int = 0) -> Enter:
    intent = f"intent_{mode}"
    places = (
        Place("tree", "t/x", intent),
        Place("tree", "t", intent),
        Place("tree", f"t/x/{leaf}", mode),
    )
    opened = Open(session, ttl_ms, session, "", f"inbox of {session}")
    return Enter(session, 1, places, lock_delay_ms=delay_ms, open=opened)


@pytest.mark.parametrize("store", STORES)
def test_a_reservation_does_not_survive_the_delay(store: str) -> None:
    commands: list[tuple[int, Command]] = [
        (10, enter("dead", 100, "1", "exclusive", DELAY_MS)),
        (11, enter("reader", 9000, "2", "shared")),
        (12, enter("waiter", 9000, "2", "exclusive")),
        (120, Leave("reader", 1)),
        (121, Look("waiter", 1)),
        (121 + DELAY_MS, Expel("nobody", "so that time passes")),
        (122 + DELAY_MS, Look("waiter", 1)),
    ]
    steps = [Step(command, at_ms, at_ms * 1000) for at_ms, command in commands]
    replay(STORES[store], reference, steps)
