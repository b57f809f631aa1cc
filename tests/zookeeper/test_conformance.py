"""The ZooKeeper store passes the contract of every store, by command and through the API."""

from __future__ import annotations

import pytest

from lockfast.conformance.contract import ApiContract, WireContract
from lockfast.conformance.harness import Harness
from tests.conformance.stores import API_FACES, FACES
from tests.servers.zookeeper import ZooKeeperEnsemble
from tests.zookeeper.harness import ZooKeeperHarness


class TestWire(WireContract):
    @pytest.fixture(params=FACES)
    def harness(self, request: pytest.FixtureRequest, node: ZooKeeperEnsemble) -> Harness:
        return ZooKeeperHarness(node, request.param)


class TestApi(ApiContract):
    @pytest.fixture(params=API_FACES)
    def harness(self, request: pytest.FixtureRequest, node: ZooKeeperEnsemble) -> Harness:
        return ZooKeeperHarness(node, request.param)
