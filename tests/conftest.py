"""For all tests: the conformance suite explains its failures, and nobody's settings leak in."""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# Timing never decides a test: no deadline per example, no complaint about slow generation.
settings.register_profile("lockfast", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("lockfast")

pytest_plugins = ["tests.measuring"]
pytest.register_assert_rewrite("lockfast.conformance")


@pytest.fixture(autouse=True)
def nothing_from_outside(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """No setting of whoever runs the tests, no lock in their own lock file, and no test's
    wish for silence."""
    for name in ("URL", "TTL", "NAMESPACE", "OWNER", "HISTORY"):
        monkeypatch.delenv(f"LOCKFAST_{name}", raising=False)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    yield
    logging.disable(logging.NOTSET)


@pytest.fixture(params=["asyncio", "uvloop"])
def each_loop(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Run the test once on asyncio's own event loop and once on uvloop.

    A test module of the asyncio API asks for it by
    `pytestmark = pytest.mark.usefixtures("each_loop")`; every `asyncio.run` in it follows.
    """
    name: str = request.param
    if name == "uvloop":
        uvloop = pytest.importorskip("uvloop", reason="uvloop does not support Windows")
        monkeypatch.setattr("asyncio.events.new_event_loop", uvloop.new_event_loop)
    return name


@pytest.fixture
def quick_path() -> Iterator[Path]:
    """A directory in memory where there is one: for stories that do not care for the disk."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as made:
        yield Path(made)
