"""The contract of every store once more, on three members that have to agree."""

from __future__ import annotations

import pytest

from lockfast.conformance.contract import ApiContract, WireContract
from lockfast.conformance.harness import Harness
from tests.etcd.harness import EtcdHarness
from tests.servers.etcd import EtcdCluster


@pytest.fixture(params=["threads", "asyncio"])
def harness(request: pytest.FixtureRequest, trio: EtcdCluster) -> Harness:
    return EtcdHarness(trio, request.param)


class TestWire(WireContract):
    pass


class TestApi(ApiContract):
    pass
