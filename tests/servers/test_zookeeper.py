"""The ZooKeeper servers that other tests rely on do what their methods say."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError

from tests.servers.proxy import Proxy
from tests.servers.zookeeper import ZooKeeperEnsemble

WAIT_S = 30.0


@contextmanager
def connected(hosts: str) -> Iterator[KazooClient]:
    client = KazooClient(hosts, timeout=5.0)
    client.start(timeout=WAIT_S)
    try:
        yield client
    finally:
        client.stop()
        client.close()


def test_one_node_keeps_its_data_over_a_kill_and_loses_them_with_a_wipe() -> None:
    with ZooKeeperEnsemble() as node:
        (member,) = node.members
        assert member.mode() == "standalone"
        with Proxy(("127.0.0.1", member.port)) as proxy, connected(proxy.address) as client:
            client.create("/kept", b"1")
            assert proxy.passed("request") > 0
        assert member.counters()["zk_packets_received"] > 0
        member.kill()
        assert member.mode() == "none"
        member.start()
        node.until_ready()
        with connected(node.hosts()) as client:
            assert client.get("/kept")[0] == b"1"
        member.kill()
        member.wipe()
        member.start()
        node.until_ready()
        with connected(node.hosts()) as client, pytest.raises(NoNodeError):
            client.get("/kept")


def test_an_ensemble_survives_the_loss_of_its_leader_and_of_one_member_s_data() -> None:
    with ZooKeeperEnsemble(3) as trio:
        killed = trio.leader()
        assert sorted(member.mode() for member in trio.members) == ["follower"] * 2 + ["leader"]
        with connected(trio.hosts(killed)) as client:
            client.create("/kept", b"1")
        killed.kill()
        killed.wipe()
        with connected(trio.hosts(trio.leader())) as client:
            assert client.get("/kept")[0] == b"1"
        killed.start()
        trio.until_ready(killed)
        with connected(trio.hosts(killed)) as client:
            client.sync("/kept")
            assert client.get("/kept")[0] == b"1"
            with trio.followers()[0].stopped():
                client.set("/kept", b"2")


def test_a_server_that_cannot_start_is_an_error_with_its_own_words() -> None:
    with (
        pytest.raises(RuntimeError, match=r'did not start(.|\n)*"soon"'),
        ZooKeeperEnsemble(1, "initLimit=soon"),
    ):
        pass
