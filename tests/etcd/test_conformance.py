"""The etcd store passes the contract of every store, by command and through the API."""

from __future__ import annotations

import pytest

from lockfast.conformance.contract import ApiContract, WireContract
from lockfast.conformance.harness import Harness
from tests.conformance.stores import API_FACES, FACES
from tests.etcd.harness import EtcdHarness
from tests.servers.etcd import EtcdCluster


class TestWire(WireContract):
    @pytest.fixture(params=FACES)
    def harness(self, request: pytest.FixtureRequest, node: EtcdCluster) -> Harness:
        return EtcdHarness(node, request.param)


class TestApi(ApiContract):
    @pytest.fixture(params=API_FACES)
    def harness(self, request: pytest.FixtureRequest, node: EtcdCluster) -> Harness:
        return EtcdHarness(node, request.param)
