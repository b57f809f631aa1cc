"""The models in examples/ show what they claim."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path
from typing import Any

import pytest

MODELS = Path(__file__).parents[2] / "examples" / "models"


@pytest.fixture
def model(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> dict[str, Any]:
    monkeypatch.syspath_prepend(str(MODELS))
    monkeypatch.delitem(sys.modules, "lock_server", raising=False)
    return runpy.run_path(str(MODELS / f"{request.param}.py"))


@pytest.mark.parametrize("model", ["lock_server"], indirect=True)
def test_clients_take_turns(model: dict[str, Any]) -> None:
    holds = [name for _, name, what in model["main"]() if what.startswith("holds")]
    assert holds == ["ada", "bob", "eve"]


@pytest.mark.parametrize("model", ["crashing_client"], indirect=True)
def test_a_crash_is_healed_by_expiry(model: dict[str, Any]) -> None:
    taken = next(at for at, name, what in model["main"]() if name == "next" and "holds" in what)
    assert taken == model["TTL"]


@pytest.mark.parametrize("model", ["guarded_resource"], indirect=True)
def test_only_a_guard_stops_a_late_writer(model: dict[str, Any]) -> None:
    assert model["main"](False)[0] == "zombie"
    assert model["main"](True)[0] == "quick"


@pytest.mark.parametrize("model", ["majority"], indirect=True)
def test_a_majority_has_one_holder_at_a_time(model: dict[str, Any]) -> None:
    for seed in range(30):
        log = model["main"](seed)
        whats = [what.split()[0] for _, _, what in log]
        assert whats == ["holds", "done"] * 3
        tokens = [int(what.split()[3].rstrip(",")) for _, _, what in log if "holds" in what]
        assert tokens == sorted(set(tokens))
    assert model["main"](1, down=2) == []
