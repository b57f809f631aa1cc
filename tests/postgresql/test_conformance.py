"""The PostgreSQL store keeps the contract of every store, by command and as users see it."""

from __future__ import annotations

import pytest

from lockfast.conformance.contract import ApiContract, WireContract
from lockfast.conformance.harness import Harness
from lockfast.stores.postgresql.rows import LOG_KEPT
from lockfast.stores.postgresql.store import PostgresStore
from tests.servers.postgresql import PostgresServer


@pytest.fixture(params=["threads", "asyncio"])
def harness(request: pytest.FixtureRequest, server: PostgresServer) -> Harness:
    return Harness(server.url(), request.param, PostgresStore.capabilities, log_kept=LOG_KEPT)


class TestWire(WireContract):
    pass


class TestApi(ApiContract):
    pass
