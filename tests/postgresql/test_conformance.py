"""The PostgreSQL store passes the contract of every store, by command and through the API."""

from __future__ import annotations

import pytest

from lockfast.conformance.contract import ApiContract, WireContract
from lockfast.conformance.harness import Harness
from lockfast.ports import WAKE_MISSED
from lockfast.stores.postgresql.rows import LOG_KEPT
from lockfast.stores.postgresql.store import PostgresStore
from tests.conformance.stores import API_FACES, FACES
from tests.servers.postgresql import PostgresServer


class TestWire(WireContract):
    @pytest.fixture(params=FACES)
    def harness(self, request: pytest.FixtureRequest, server: PostgresServer) -> Harness:
        return _harness(server, request.param)


class TestApi(ApiContract):
    @pytest.fixture(params=API_FACES)
    def harness(self, request: pytest.FixtureRequest, server: PostgresServer) -> Harness:
        return _harness(server, request.param)


def _harness(server: PostgresServer, face: str) -> Harness:
    return Harness(
        server.url(), face, PostgresStore.capabilities, log_kept=LOG_KEPT, first_wake=WAKE_MISSED
    )
