"""The contract of every store on Redis over TCP: run by test_platforms.py under a shim."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from lockfast.conformance.contract import ApiContract
from lockfast.conformance.harness import Harness
from lockfast.ports import WAKE_MISSED
from lockfast.stores.redis.store import RedisStore
from tests.servers.ports import free_port
from tests.servers.redis import RedisServer


@pytest.fixture(scope="session")
def server() -> Iterator[RedisServer]:
    with RedisServer(port=free_port()) as started:
        yield started


@pytest.fixture(params=["threads", "asyncio"])
def harness(request: pytest.FixtureRequest, server: RedisServer) -> Harness:
    return Harness(server.tcp_url(), request.param, RedisStore.capabilities, first_wake=WAKE_MISSED)


class TestApi(ApiContract):
    pass
