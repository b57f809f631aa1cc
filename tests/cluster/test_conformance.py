"""A Redis Cluster passes the contract of every store."""

from __future__ import annotations

import pytest

from lockfast.conformance.contract import ApiContract, WireContract
from lockfast.conformance.harness import Harness
from lockfast.core.placement import Placement
from lockfast.ports import WAKE_MISSED, Capabilities
from tests.servers.redis_cluster import RedisCluster
from tests.sharded.harness import ShardedHarness

SHARDS = 16


class TestWire(WireContract):
    """The sessions of the suite claim locks of any name, so there is one shard."""

    @pytest.fixture(params=["asyncio"])
    def harness(
        self, request: pytest.FixtureRequest, cluster: RedisCluster, namespace: str
    ) -> Harness:
        url = cluster.url(namespace, shards=1)
        return Harness(url, request.param, Capabilities(), first_wake=WAKE_MISSED)


class TestApi(ApiContract):
    @pytest.fixture(params=["threads", "asyncio"])
    def harness(
        self, request: pytest.FixtureRequest, cluster: RedisCluster, namespace: str
    ) -> Harness:
        url = cluster.url(namespace, shards=SHARDS)
        return ShardedHarness(url, request.param, Placement(SHARDS))
