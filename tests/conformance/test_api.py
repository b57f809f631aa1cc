"""Every store of this package keeps the contract, as users see it."""

from __future__ import annotations

from pathlib import Path

import pytest

from lockfast.conformance.contract import ApiContract
from lockfast.conformance.harness import Harness
from tests.conformance.stores import EVERYWHERE, STORES, harness_for, shorten_logs


@pytest.fixture(params=[*EVERYWHERE, *((store, "uvloop") for store in STORES)], ids="-".join)
def harness(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, quick_path: Path
) -> Harness:
    store, face = request.param
    shorten_logs(monkeypatch)
    return harness_for(store, face, quick_path)


class TestApi(ApiContract):
    pass
