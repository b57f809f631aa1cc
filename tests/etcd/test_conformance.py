"""The etcd store keeps the contract of every store, command by command and as users see it."""

from __future__ import annotations

import pytest

from lockfast.conformance.contract import ApiContract, WireContract
from lockfast.conformance.harness import Harness
from tests.etcd.harness import EtcdHarness
from tests.servers.etcd import EtcdCluster


@pytest.fixture(params=["threads", "asyncio"])
def harness(request: pytest.FixtureRequest, node: EtcdCluster) -> Harness:
    return EtcdHarness(node, request.param)


class TestWire(WireContract):
    pass


class TestApi(ApiContract):
    pass
