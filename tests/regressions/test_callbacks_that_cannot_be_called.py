"""One callback that could not be called kept all other leases from being declared lost.

When a session ends, its leases are declared lost one after another. If one failed (no thread could
be started for its `on_lost`), the rest were not: their holders went on working, queued claims slept
for ever, and the keeper died silently.
"""

from __future__ import annotations

import logging
import threading
from typing import Any

import pytest

import lockfast
from lockfast.flow.session_life import KeeperState
from lockfast.runtimes.threads import ThreadsRuntime


def test_the_others_are_told_all_the_same(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def no_thread(runtime: ThreadsRuntime, job: Any, name: str) -> None:
        raise RuntimeError("can't start new thread")

    url = "memory://no-thread"
    with lockfast.connect(url) as client, lockfast.connect(url) as admin:
        one, other = client.lock("one").acquire(), client.lock("other").acquire()
        one.on_lost(lambda lease: None)
        monkeypatch.setattr(ThreadsRuntime, "spawn", no_thread)

        admin.revoke(session=one.session, reason="to see what happens")

        assert other.lost.wait(60)
        (session,) = client._core.sessions()
        while session.keeper is not KeeperState.STOPPED:
            pass  # until its keeper has stopped normally
        assert "can't start new thread" in caplog.text


def test_a_keeper_that_fails_says_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    died: list[Any] = []
    monkeypatch.setattr(threading, "excepthook", died.append)
    caplog.set_level(logging.WARNING, "lockfast")
    with lockfast.connect("memory://failing-keeper") as client:
        lease = client.lock("a").acquire()
        (session,) = client._core.sessions()

        def fail() -> Any:
            raise MemoryError("no more")

        monkeypatch.setattr(session, "take_inbox", fail)
        session.listener.interrupt()

        assert lease.lost.wait(60)
        with pytest.raises(lockfast.LeaseLostError, match="keeper failed: MemoryError"):
            lease.release()
        while not died:
            pass  # until its thread has ended
        assert "keeper failed" in caplog.text
