"""Forked children of one client hand a lock to each other, as workers of a prefork server do.

On PostgreSQL the children shared the notification channel of their parent's client. So each took
the others' sessions for its own and sent no notification: every hand-over waited for a keep-alive.
On etcd and ZooKeeper they shared the random bits of ranks: of two claims with the same rank, a
client saw only one.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from typing import Any

import pytest

import lockfast
from tests.servers.etcd import EtcdCluster
from tests.servers.postgresql import PostgresServer
from tests.servers.zookeeper import ZooKeeperEnsemble

CHILDREN = 3
TURNS = 10
fork = multiprocessing.get_context("fork")


@pytest.mark.parametrize("server", [PostgresServer, EtcdCluster, ZooKeeperEnsemble])
def test_they_take_turns(server: Callable[[], Any]) -> None:
    with (
        server() as started,
        # A keep-alive comes too late for this test.
        lockfast.connect(started.url(), ttl=30 if server is ZooKeeperEnsemble else 3600) as client,
        client.lock("parent"),
    ):

        def take_turns() -> None:
            for _ in range(TURNS):
                with client.lock("shared"):
                    pass

        children = [fork.Process(target=take_turns) for _ in range(CHILDREN)]
        for child in children:
            child.start()
        for child in children:
            child.join(120)
        late = [child for child in children if child.exitcode is None]
        for child in late:
            child.kill()
        assert late == []
        assert [child.exitcode for child in children] == CHILDREN * [0]


@pytest.mark.parametrize("url", ["etcd://127.0.0.1:1", "zookeeper://127.0.0.1:1"])
def test_they_draw_different_arrivals(url: str) -> None:
    answers = fork.Queue()
    with lockfast.connect(url) as client:
        own = client._core.store.context.own  # type: ignore[attr-defined]
        drawn = [own.next_arrival(1)]

        def draw() -> None:
            answers.put(client._core.store.context.own.next_arrival(1))  # type: ignore[attr-defined]

        children = [fork.Process(target=draw) for _ in range(CHILDREN)]
        for child in children:
            child.start()
        drawn += [answers.get(timeout=60) for _ in children]
        for child in children:
            child.join(60)
    assert len(set(drawn)) == 1 + CHILDREN
