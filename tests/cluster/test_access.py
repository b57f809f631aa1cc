"""Who may use a cluster: passwords, ACL users, TLS; and what doctor reports."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack
from pathlib import Path

import pytest

import lockfast
from lockfast import aio
from lockfast.cli import main
from lockfast.errors import StoreMisconfiguredError, UnsupportedError
from tests.redis.test_tls import Papers
from tests.redis.tls import TlsFront
from tests.servers.redis_cluster import RedisCluster

RIGHTS = next(
    line.split("ACL SETUSER locks ")[1].split()
    for line in (Path(__file__).parents[2] / "docs/stores/redis.md").read_text().splitlines()
    if "ACL SETUSER locks" in line
)
"""As documented for a single server."""
MORE_RIGHTS = ("+cluster|slots", "+unsubscribe", "+asking")


async def hold_in_a_task(url: str) -> int:
    async with aio.connect(url) as client, client.lock("orders/42") as lease:
        return int(lease.token)


def test_a_user_with_the_documented_rights_can_do_everything(
    cluster: RedisCluster, namespace: str
) -> None:
    for node in cluster.nodes:
        node.call("ACL", "SETUSER", "locks", "reset", *RIGHTS, *MORE_RIGHTS)
    try:
        url = cluster.url(namespace, "locks:password@", shards=4)
        with lockfast.connect(url) as client:
            for i in range(12):
                with client.lock(f"n{i}"):
                    pass
            with client.lock("a") as held:
                assert [info.name for info in client.list()] == ["a"]
            assert asyncio.run(hold_in_a_task(url))
            assert held.token
        for right, wrong in (("password", "another"), ("locks", "someone")):
            with lockfast.connect(url.replace(f"{right}", wrong, 1)) as client:
                with pytest.raises(StoreMisconfiguredError, match="user or password") as refused:
                    client.lock("a").acquire()
            assert "another" not in str(refused.value)
        for node in cluster.nodes:
            node.call("ACL", "SETUSER", "locks", "-publish")
        with lockfast.connect(url) as client:
            with pytest.raises(StoreMisconfiguredError, match="does not allow"):
                client.lock("b").acquire()
    finally:
        for node in cluster.nodes:
            node.call("ACL", "DELUSER", "locks")


def test_all_nodes_are_reached_through_tls(tmp_path: Path) -> None:
    """The nodes announce the ports of their fronts, so redirections lead there too."""
    papers = Papers(tmp_path / "papers")
    with ExitStack() as stack:
        fronts = [stack.enter_context(TlsFront(Path("later"), papers.context)) for _ in range(3)]
        ports = [front.port for front in fronts]
        cluster = stack.enter_context(RedisCluster(3, 0, announced=ports))
        for node, front in zip(cluster.nodes, fronts, strict=True):
            front.upstream = node.socket
        url = f"rediss+cluster://127.0.0.1:{fronts[0].port}?ca={papers.ca}&shards=6"
        with lockfast.connect(url) as client:
            for i in range(12):
                with client.lock(f"n{i}"):
                    pass
        assert asyncio.run(hold_in_a_task(url))
        with lockfast.connect(url.partition("?")[0]) as client:
            with pytest.raises(StoreMisconfiguredError, match="certificate"):
                client.lock("a").acquire()


def test_doctor_checks_every_node_and_resets_every_shard(
    cluster: RedisCluster, namespace: str, capsys: pytest.CaptureFixture[str]
) -> None:
    url = cluster.url(namespace, shards=6)
    with lockfast.connect(url) as client:
        leases = [client.lock(f"n{i}").acquire() for i in range(12)]
        assert main(["doctor", url]) == 0
        said = capsys.readouterr().out
        assert "6 by name: 2 on" in said
        for node in cluster.primaries:
            assert f"127.0.0.1:{node.port} maxmemory-policy" in said
        assert main(["doctor", cluster.url(namespace, shards=7)]) == 2
        assert "shards=6&shard_by=name" in capsys.readouterr().out
        assert main(["doctor", "--repair", url]) == 0
        capsys.readouterr()
        for lease in leases:
            lease.check()
        assert main(["reset", "--yes", "--url", url, namespace]) == 0
        for lease in leases:
            assert lease.lost.wait(30)
        with client.lock("n0") as lease:
            assert lease.token > max(each.token for each in leases)
    assert main(["reset", "--yes", "--url", url, namespace]) == 0
    with lockfast.connect(cluster.url(namespace, shards=3)) as client:
        client.lock("n0").acquire().release()


def test_a_lock_server_over_a_cluster_is_refused(cluster: RedisCluster, namespace: str) -> None:
    from lockfast.server.app import LockServer

    with pytest.raises(UnsupportedError, match="spreads locks over shards"):
        LockServer(cluster.url(namespace), None, None)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "url",
    [
        "redis+cluster://",
        "redis+cluster://a,a",
        "redis+cluster://a:0",
        "redis+cluster://a/3",
        "redis+cluster://a?shards=100",
        "redis+cluster://a?shard_by=luck",
        "redis+cluster://a?ca=file",
        "redis://a?shards=4",
    ],
)
def test_a_malformed_url_is_refused_before_any_request(url: str) -> None:
    with pytest.raises(StoreMisconfiguredError):
        lockfast.connect(url)
