"""For all tests: assertion messages for the conformance suite, and no outside settings."""

from __future__ import annotations

import gc
import logging
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# Timing never decides a test: no deadline per example, no health check of slow generation.
settings.register_profile("lockfast", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("lockfast")

pytest_plugins = ["tests.measuring"]
pytest.register_assert_rewrite("lockfast.conformance")


def pytest_configure() -> None:
    """Let programs begin with default signals, even if this run was started by `nohup` or `&`.

    A program inherits ignored signals, but not handlers. So replace each ignored signal by a
    handler that ignores it.
    """
    backgrounded = {"SIGHUP", "SIGINT", "SIGQUIT"}
    for number in signal.Signals:
        if number.name in backgrounded and signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, lambda *_: None)


def pytest_collection_finish() -> None:
    """Spare the garbage collector the tests themselves: traversing them stops all threads."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def nothing_from_outside(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """Hide the user's settings and lock file, and undo `logging.disable` of a test."""
    for name in ("URL", "TTL", "NAMESPACE", "OWNER", "HISTORY"):
        monkeypatch.delenv(f"LOCKFAST_{name}", raising=False)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    yield
    logging.disable(logging.NOTSET)


@pytest.fixture(params=["asyncio", "uvloop"])
def each_loop(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Run the test once on asyncio's own event loop and once on uvloop.

    A test module of the asyncio API requests it with
    `pytestmark = pytest.mark.usefixtures("each_loop")`; it applies to every `asyncio.run`.
    """
    name: str = request.param
    if name == "uvloop":
        uvloop = pytest.importorskip("uvloop", reason="uvloop does not support Windows")
        monkeypatch.setattr("asyncio.events.new_event_loop", uvloop.new_event_loop)
    return name


@pytest.fixture
def quick_path() -> Iterator[Path]:
    """Yield a directory, in memory if possible, for tests that need no disk."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as made:
        yield Path(made)
