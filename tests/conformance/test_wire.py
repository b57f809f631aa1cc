"""Every store of this package keeps the contract, command by command."""

from __future__ import annotations

from pathlib import Path

import pytest

from lockfast.conformance.contract import WireContract
from lockfast.conformance.harness import Harness
from lockfast.stores import memory
from lockfast.stores.sqlite import file
from tests.conformance.stores import EVERYWHERE, MovedClock, harness_for, shorten_logs


@pytest.fixture(params=EVERYWHERE, ids="-".join)
def harness(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, quick_path: Path
) -> Harness:
    store, face = request.param
    shorten_logs(monkeypatch)
    made = harness_for(store, face, quick_path)
    if face != "simulator":
        # At the wire no client has its own clock, so the store's clock can be moved and no test
        # waits.
        clock = MovedClock()
        monkeypatch.setattr(memory, "now_ms", clock.now_ms)
        monkeypatch.setattr(file, "now_ms", clock.now_ms)
        monkeypatch.setattr(made, "pass_ms", clock.pass_ms)
    return made


class TestWire(WireContract):
    pass
