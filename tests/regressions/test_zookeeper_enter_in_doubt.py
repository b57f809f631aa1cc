"""An enter without a reply was sent again while the keeper was reading its claim.

The keeper's read was sent before the second enter, and its reply said that the claim is not in the
queue. The session then forgot the claim that the second enter had just stored: the claim stayed in
the queue, was granted, and nothing released it until its session ended.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

import lockfast
from tests.processes.crew import until
from tests.servers.proxy import Cut, Proxy
from tests.servers.zookeeper import ZooKeeperEnsemble

PATIENCE_S = 60.0
ROUNDS = 8


@pytest.fixture
def node() -> Iterator[ZooKeeperEnsemble]:
    with ZooKeeperEnsemble() as started:
        yield started


def test_a_claim_whose_enter_was_sent_twice_is_known_to_its_session(
    node: ZooKeeperEnsemble,
) -> None:
    with Proxy(("127.0.0.1", node.members[0].port)) as proxy:
        for number in range(ROUNDS):
            namespace = f"doubt-{number}"
            broken = f"zookeeper://{proxy.address}?namespace={namespace}"
            with (
                lockfast.connect(node.url(namespace), ttl=30) as first,
                lockfast.connect(broken, ttl=30) as second,
            ):
                hand_over(first, second, proxy, Cut("request", 37 * number))


def hand_over(first: lockfast.Client, second: lockfast.Client, proxy: Proxy, cut: Cut) -> None:
    held = first.lock("a").acquire(timeout=PATIENCE_S)
    second.lock("warm-up").acquire(timeout=PATIENCE_S).release()
    granted: list[lockfast.Lease] = []
    waiter = threading.Thread(
        target=lambda: granted.append(second.lock("a").acquire(timeout=PATIENCE_S))
    )
    proxy.arm(cut)
    waiter.start()
    until(lambda: first.inspect("a").waiting_count > 0, "it waits", within=PATIENCE_S)
    held.release()
    waiter.join(PATIENCE_S)
    assert granted, f"after {cut}: {first.inspect('a')}"
    assert first.inspect("a").waiting_count == 0
    granted[0].release()
    assert first.inspect("a").holder_count == 0
