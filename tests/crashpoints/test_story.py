"""The connection is reset, or the process killed, at any byte of a short scenario."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

from tests.crashpoints.story import Story, points
from tests.servers.etcd import EtcdCluster
from tests.servers.proxy import Proxy
from tests.servers.redis import RedisServer
from tests.servers.zookeeper import ZooKeeperEnsemble

pytestmark = pytest.mark.timeout(3600)
_names = itertools.count()


@pytest.fixture(scope="module", params=["redis", "etcd", "zookeeper"])
def stage(request: pytest.FixtureRequest) -> Iterator[tuple[str, str, Proxy]]:
    """Return the address of a server, that of the proxy in front of it, and the proxy."""
    if request.param == "redis":
        with RedisServer() as server, Proxy(server.socket) as proxy:
            yield f"unix://{server.socket}", f"redis://{proxy.address}", proxy
    elif request.param == "zookeeper":
        with ZooKeeperEnsemble() as ensemble:
            (member,) = ensemble.members
            with Proxy(("127.0.0.1", member.port)) as proxy:
                yield f"zookeeper://{member.address}", f"zookeeper://{proxy.address}", proxy
    else:
        with EtcdCluster(1) as node:
            port = node.members[0].port
            with Proxy(("127.0.0.1", port)) as proxy:
                yield f"etcd://127.0.0.1:{port}", f"etcd://{proxy.address}", proxy


def story(stage: tuple[str, str, Proxy]) -> Story:
    direct, broken, proxy = stage
    namespace = f"?namespace=story{next(_names)}"
    return Story(direct + namespace, broken + namespace, proxy)


def test_a_reset_at_any_byte_orphans_nothing(stage: tuple[str, str, Proxy]) -> None:
    for _ in range(2):  # the first time, scripts are loaded
        whole = story(stage)
        whole.tell(None)
        whole.check(None)
        assert not whole.errors
    for cut in points(stage[2], sampled=12):
        cut_off = story(stage)
        cut_off.tell(cut)
        cut_off.check(cut)


def test_a_process_killed_at_any_byte_orphans_nothing(stage: tuple[str, str, Proxy]) -> None:
    whole = story(stage)
    whole.tell(None)
    for cut in points(stage[2], sampled=3):
        killed = story(stage)
        killed.tell_killed(cut)
        killed.check(cut)
