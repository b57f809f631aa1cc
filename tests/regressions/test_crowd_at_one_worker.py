"""Of ten thousand tasks that queued at once, some got StoreUnavailableError.

Whole transactions run on one worker thread. A command that waited for it longer than its
`connect_timeout` still ran, but with no time left: if the keeper held the file at that moment, the
command gave up on a healthy store.
"""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest

from lockfast.core.commands import Inspect, ResourceView
from lockfast.stores.sqlite.aio import AsyncSqliteStore


def test_turn_that_comes_late_is_a_turn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = AsyncSqliteStore(tmp_path / "locks.db")
    file = store.file()
    at_work, its_turn = threading.Event(), threading.Event()
    real = file.apply

    def keep() -> None:
        with file._mutex:
            at_work.set()
            its_turn.wait(60)

    def apply(command: Any, timeout_ms: int) -> Any:
        its_turn.set()
        return real(command, timeout_ms)

    monkeypatch.setattr(file, "apply", apply)
    keeper = threading.Thread(target=keep)
    keeper.start()
    at_work.wait(60)
    wire = store.caller_wire()

    reply = asyncio.run(send(wire))

    assert isinstance(reply, ResourceView)
    keeper.join()
    wire.close()
    store.close()


async def send(wire: Any) -> Any:
    return await wire.send(Inspect("lock", "orders/42"), 0)
