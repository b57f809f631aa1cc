"""The Redis store passes the contract of every store, by command and through the API."""

from __future__ import annotations

import pytest

from lockfast.conformance.contract import ApiContract, WireContract
from lockfast.conformance.harness import Harness
from lockfast.ports import WAKE_MISSED
from lockfast.stores.redis.store import RedisStore
from tests.servers.redis import RedisServer


@pytest.fixture(params=["threads", "asyncio", "uvloop"])
def harness(request: pytest.FixtureRequest, server: RedisServer) -> Harness:
    return Harness(server.url(), request.param, RedisStore.capabilities, first_wake=WAKE_MISSED)


class TestWire(WireContract):
    pass


class TestApi(ApiContract):
    pass
