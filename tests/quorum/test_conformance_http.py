"""The contract on three Lockfast servers as nodes, blocking and asyncio."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from lockfast.conformance.contract import ContendingApiContract, WireContract
from lockfast.conformance.harness import Harness
from lockfast.stores.memory import wall_us
from lockfast.stores.quorum import CAPABILITIES
from tests.conformance.stores import API_FACES, MovedClock
from tests.quorum.nodes import GRACE_MS
from tests.quorum.servers import ThreeServers, three_servers
from tests.quorum.test_conformance_redis import GraceHarness


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ThreeServers]:
    with three_servers(tmp_path_factory.mktemp("nodes")) as started:
        yield started


class TestWire(WireContract):
    """The nodes are in this process: their clocks can be moved."""

    @pytest.fixture
    def harness(self, three: ThreeServers, monkeypatch: pytest.MonkeyPatch) -> Harness:
        clock = MovedClock()

        def moved_us() -> int:
            return wall_us() + 1000 * clock.ahead_ms

        for place in ("stores.quorum.sqlite", "stores.quorum", "server.node_service"):
            monkeypatch.setattr(f"lockfast.{place}.wall_us", moved_us)
        made = Harness(three.url(), "threads", CAPABILITIES)
        made.keeps_process = False

        async def pass_ms(span_ms: int) -> None:
            """Nodes let a lease last for twice the skew longer than its TTL."""
            await clock.pass_ms(span_ms + GRACE_MS)

        monkeypatch.setattr(made, "pass_ms", pass_ms)
        return made


class TestApi(ContendingApiContract):
    @pytest.fixture(params=API_FACES)
    def harness(self, request: pytest.FixtureRequest, three: ThreeServers) -> Harness:
        return GraceHarness(three.url(), request.param, CAPABILITIES)
