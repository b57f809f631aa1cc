"""The contract of every store again, on three members that have to agree."""

from __future__ import annotations

import pytest

from lockfast.conformance.contract import ApiContract, WireContract
from lockfast.conformance.harness import Harness
from tests.conformance.stores import FACES
from tests.etcd.harness import EtcdHarness
from tests.servers.etcd import EtcdCluster


class TestWire(WireContract):
    @pytest.fixture(params=FACES)
    def harness(self, request: pytest.FixtureRequest, trio: EtcdCluster) -> Harness:
        return EtcdHarness(trio, request.param)


class TestApi(ApiContract):
    @pytest.fixture(params=["threads", "uvloop"])  # on asyncio's own loop one node is enough
    def harness(self, request: pytest.FixtureRequest, trio: EtcdCluster) -> Harness:
        return EtcdHarness(trio, request.param)
