"""Sessions that end at the worst moment leave nothing behind, and queues move on."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

import lockfast
from tests.etcd.ends import die_together, end_while_threads_acquire, keys_left, serve_tasks
from tests.processes.crew import until
from tests.servers.etcd import EtcdCluster


@pytest.mark.parametrize("waiters", [1, 3])
def test_holder_and_waiters_die_together(tmp_path: Path, waiters: int) -> None:
    """After kill -9 only etcd ends their sessions, and the next claim gets the lock."""
    with EtcdCluster(1) as node:  # an old etcd may panic when a client dies
        assert len(list(die_together(tmp_path, node, 5, waiters))) == 5


def test_hundreds_of_tasks_of_one_client_are_served_in_order(node: EtcdCluster) -> None:
    assert serve_tasks(node.url(), 400) == list(range(400))


@pytest.mark.parametrize("waiters", [20, 200])
def test_many_waiters_of_one_client_are_served_in_order(node: EtcdCluster, waiters: int) -> None:
    url = node.url()
    served: list[int] = []
    with lockfast.connect(url, ttl=30) as holder, lockfast.connect(url, ttl=30) as client:
        held = holder.lock("orders/42").acquire()

        def take(number: int) -> None:
            with client.lock("orders/42"):
                served.append(number)

        threads = [threading.Thread(target=take, args=(i,)) for i in range(waiters)]
        for i, thread in enumerate(threads):
            thread.start()
            until(
                lambda count=i + 1: holder.inspect("orders/42").waiting_count == count,  # type: ignore[misc]
                "it waits",
            )
        held.release()
        for thread in threads:
            thread.join(60)
    assert served == list(range(waiters))
    assert keys_left(node, url) == []


@pytest.mark.parametrize("how", ["close", "revoke"])
def test_a_session_ends_while_eight_threads_acquire(node: EtcdCluster, how: str) -> None:
    """Whatever they were about to take is free, or held by live clients."""
    url = node.url()
    for number in range(4):
        end_while_threads_acquire(url, how, number)
        until(lambda: keys_left(node, url) == [], "nothing is left behind")
