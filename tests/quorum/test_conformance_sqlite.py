"""The contract on three nodes in SQLite files, blocking and asyncio."""

from __future__ import annotations

import contextlib
import sqlite3
from pathlib import Path

import pytest

from lockfast.conformance.contract import ContendingApiContract, WireContract
from lockfast.conformance.harness import Harness
from lockfast.stores.memory import wall_us
from lockfast.stores.quorum import CAPABILITIES
from lockfast.stores.quorum.messages import ReadSessions
from lockfast.stores.quorum.sqlite import SqliteNode
from tests.conformance.stores import API_FACES, FACES, MovedClock
from tests.quorum.nodes import GRACE_MS, SKEW_S
from tests.quorum.test_conformance_redis import GraceHarness


def url_in(directory: Path) -> str:
    """Return the URL of nodes that have existed for longer than clocks may differ."""
    files = [directory / f"{name}.db" for name in "abc"]
    for file in files:
        node = SqliteNode(file, str(file), round(SKEW_S * 1_000_000), 0)
        node.apply(ReadSessions("", 1))
        node.close()
        with contextlib.closing(sqlite3.connect(file)) as connection, connection:
            connection.execute("UPDATE node SET floor = 0")
    return f"quorum+sqlite://{','.join(map(str, files))}?skew={SKEW_S}"


class TestWire(WireContract):
    @pytest.fixture(params=FACES)
    def harness(
        self,
        request: pytest.FixtureRequest,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
    ) -> Harness:
        clock = MovedClock()

        def moved_us() -> int:
            return wall_us() + 1000 * clock.ahead_ms

        monkeypatch.setattr("lockfast.stores.quorum.sqlite.wall_us", moved_us)
        monkeypatch.setattr("lockfast.stores.quorum.wall_us", moved_us)
        made = Harness(url_in(tmp_path), request.param, CAPABILITIES)

        async def pass_ms(span_ms: int) -> None:
            """Nodes let a lease last for twice the skew longer than its TTL."""
            await clock.pass_ms(span_ms + GRACE_MS)

        monkeypatch.setattr(made, "pass_ms", pass_ms)
        return made


class TestApi(ContendingApiContract):
    @pytest.fixture(params=API_FACES)
    def harness(self, request: pytest.FixtureRequest, tmp_path: Path) -> Harness:
        return GraceHarness(url_in(tmp_path), request.param, CAPABILITIES)
