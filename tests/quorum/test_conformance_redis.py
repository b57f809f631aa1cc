"""The contract on five Redis nodes, blocking and asyncio."""

from __future__ import annotations

import pytest

from lockfast.conformance.contract import ContendingApiContract, WireContract
from lockfast.conformance.harness import Harness
from lockfast.stores.quorum import CAPABILITIES
from tests.conformance.stores import API_FACES, FACES
from tests.quorum.nodes import GRACE_MS, FiveNodes

LATE_MS = 250


class GraceHarness(Harness):
    """Nodes let a lease last for twice the skew longer than its TTL.

    The last of them may begin later than the majority whose answers the client has waited for.
    """

    async def pass_ms(self, span_ms: int) -> None:
        await super().pass_ms(span_ms + GRACE_MS + LATE_MS)


class TestWire(WireContract):
    @pytest.fixture(params=FACES)
    def harness(self, request: pytest.FixtureRequest, five: FiveNodes) -> Harness:
        return GraceHarness(five.url(), request.param, CAPABILITIES)


class TestApi(ContendingApiContract):
    @pytest.fixture(params=API_FACES)
    def harness(self, request: pytest.FixtureRequest, five: FiveNodes) -> Harness:
        return GraceHarness(five.url(), request.param, CAPABILITIES)
