"""The contract on five nodes in memory, blocking and asyncio."""

from __future__ import annotations

import itertools

import pytest

from lockfast.conformance.contract import ContendingApiContract, WireContract
from lockfast.conformance.harness import Harness
from lockfast.stores.quorum import CAPABILITIES
from lockfast.stores.quorum.node import SKEW_US
from tests.conformance.stores import API_FACES, FACES, MovedClock

_numbers = itertools.count()


def url() -> str:
    return f"quorum+memory://5/conformance-{next(_numbers)}"


class TestWire(WireContract):
    @pytest.fixture(params=FACES)
    def harness(self, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Harness:
        clock = MovedClock()
        monkeypatch.setattr("lockfast.stores.quorum.opening.now_ms", clock.now_ms)
        made = Harness(url(), request.param, CAPABILITIES)

        async def pass_ms(span_ms: int) -> None:
            """Nodes let a lease last for twice the skew longer than its TTL."""
            await clock.pass_ms(span_ms + 2 * SKEW_US // 1000)

        monkeypatch.setattr(made, "pass_ms", pass_ms)
        return made


class TestApi(ContendingApiContract):
    @pytest.fixture(params=API_FACES)
    def harness(self, request: pytest.FixtureRequest) -> Harness:
        return Harness(url(), request.param, CAPABILITIES)
