"""A sharded store passes the contract of every store, over shards in memory."""

from __future__ import annotations

import itertools

import pytest

from lockfast.conformance.contract import ApiContract, WireContract
from lockfast.conformance.harness import Harness
from lockfast.core.placement import Placement
from lockfast.ports import Capabilities
from tests.conformance.stores import LOG_KEPT, shorten_logs
from tests.sharded.harness import ShardedHarness, SimulatedShards

SHARDS = 4
_numbers = itertools.count(1)


def url_of(shards: int) -> str:
    return f"sharded+memory://contract-{next(_numbers)}?shards={shards}"


@pytest.fixture(autouse=True)
def short_logs(monkeypatch: pytest.MonkeyPatch) -> None:
    shorten_logs(monkeypatch)


class TestWire(WireContract):
    """The sessions of the suite claim locks of any name, so there is one shard."""

    @pytest.fixture
    def harness(self) -> Harness:
        return Harness(url_of(1), "threads", Capabilities(), log_kept=LOG_KEPT)


class TestApi(ApiContract):
    @pytest.fixture(params=["uvloop", "simulator"])
    def harness(self, request: pytest.FixtureRequest) -> Harness:
        """Threads and asyncio run on a real cluster: tests/cluster/test_conformance.py."""
        if request.param == "simulator":
            return SimulatedShards(Placement(SHARDS), LOG_KEPT)
        url = url_of(SHARDS)
        return ShardedHarness(url, request.param, Placement(SHARDS), log_kept=LOG_KEPT)
