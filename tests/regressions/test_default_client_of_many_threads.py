"""`lockfast.lock()` created a client for each thread that called it for the first time at once.

Each client opened its own session, and re-entering a lock through a different client deadlocked.
"""

from __future__ import annotations

import threading
from contextlib import suppress
from types import ModuleType

import pytest

from lockfast.api.aio import client as aio
from lockfast.api.blocking import client as blocking

THREADS = 4


@pytest.mark.parametrize("face", [blocking, aio], ids=["blocking", "asyncio"])
def test_there_is_one(face: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCKFAST_URL", "memory://")
    monkeypatch.setattr(face._default, "client", None)
    connect, together = face.connect, threading.Barrier(2)
    connected: list[object] = []

    def connect_slowly() -> object:
        """Give another thread time to connect as well."""
        with suppress(threading.BrokenBarrierError):
            together.wait(0.3)
        connected.append(connect())
        return connected[-1]

    monkeypatch.setattr(face, "connect", connect_slowly)
    threads = [threading.Thread(target=face.default_client) for _ in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(connected) == 1
    assert face.default_client() is connected[0]
