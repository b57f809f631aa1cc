"""The stores of this package, ready for the conformance suite."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from lockfast.conformance.harness import Harness
from lockfast.core import memory_rows
from lockfast.ports import Capabilities
from lockfast.runtimes.platform import now_ms
from lockfast.stores.sqlite import log as sqlite_log
from lockfast.stores.sqlite import processes
from tests.conformance.simulator import SimHarness

STORES = ("memory", "sqlite", "apsw")
FACES = ("threads", "asyncio")
API_FACES = (*FACES, "uvloop")
"""Many web servers install uvloop, whose transports are not asyncio's own."""
EVERYWHERE = [
    *((store, face) for store in STORES for face in FACES),
    ("memory", "simulator"),
]

LOG_KEPT = 300
"""Enough to see that a log is bounded, without writing ten thousand entries."""

_numbers = itertools.count()


def url_of(store: str, directory: Path) -> str:
    """Return the URL of an unused store."""
    if store == "memory":
        return f"memory://conformance-{next(_numbers)}"
    driver = "stdlib" if store == "sqlite" else "apsw"
    return f"sqlite://{directory}/locks.db?driver={driver}"


def declared_by(store: str) -> Capabilities:
    return Capabilities(death_watch=store != "memory" and bool(processes.identity()))


def shorten_logs(monkeypatch: pytest.MonkeyPatch) -> None:
    for log in (memory_rows, sqlite_log):
        monkeypatch.setattr(log, "LOG_KEPT", LOG_KEPT)


def harness_for(store: str, face: str, directory: Path) -> Harness:
    if face == "simulator":
        return SimHarness(seed=1, log_kept=LOG_KEPT)
    return Harness(url_of(store, directory), face, declared_by(store), log_kept=LOG_KEPT)


class MovedClock:
    """A store's clock, which a test can move forward."""

    def __init__(self) -> None:
        self.ahead_ms = 0

    def now_ms(self) -> int:
        return now_ms() + self.ahead_ms

    async def pass_ms(self, span_ms: int) -> None:
        self.ahead_ms += span_ms
