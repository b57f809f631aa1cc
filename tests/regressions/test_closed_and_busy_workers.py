"""The asyncio API of the embedded store: errors of its worker thread, and its timeouts.

Once closed, it raised a bare RuntimeError. A command that was queued for the worker started its
timeout only when its turn came: of ten callers with a timeout of half a second on a store that did
not answer, the last waited five seconds. Counting the time in the queue always made the last of ten
thousand callers give up on a store that was only busy.
"""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest

import lockfast
import lockfast.aio
from lockfast.core.commands import Inspect
from lockfast.stores.sqlite.aio import TRY_MS, AsyncSqliteStore


def test_a_closed_client_says_so(tmp_path: Path) -> None:
    async def story() -> None:
        client = lockfast.aio.connect(f"sqlite://{tmp_path}/locks.db")
        await client.close()
        with pytest.raises(lockfast.StoreUnavailableError, match="the client is closed"):
            await client.inspect("a")

    asyncio.run(story())


@pytest.mark.parametrize("answers", [False, True])
def test_time_behind_others_counts_while_nothing_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answers: bool
) -> None:
    async def story() -> None:
        store = AsyncSqliteStore(tmp_path / "locks.db")
        wire = store.caller_wire()
        file = store.file()
        go_on = threading.Event()
        given: list[int] = []

        def apply(command: Any, timeout_ms: int) -> Any:
            given.append(timeout_ms)
            go_on.wait(60)
            if not answers:
                raise lockfast.StoreUnavailableError(store.label, "kept shut", "try again")

        monkeypatch.setattr(file, "apply", apply)
        patience_ms = TRY_MS + 1
        first = asyncio.create_task(wire.send(Inspect("lock", "a"), 60_000))
        second = asyncio.create_task(wire.send(Inspect("lock", "a"), patience_ms))
        while not given:
            await asyncio.sleep(0)
        asyncio.get_running_loop().call_later(patience_ms / 1000, go_on.set)
        await asyncio.gather(first, second, return_exceptions=True)

        assert given[1] == (patience_ms if answers else TRY_MS)
        wire.close()
        store.close()

    asyncio.run(story())


def test_a_cancelled_close_leaves_nothing_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story() -> None:
        client = lockfast.aio.connect(f"sqlite://{tmp_path}/locks.db")
        file = client._core.store._file  # type: ignore[attr-defined]
        cancelled = threading.Event()
        real = file.apply

        def apply(command: Any, timeout_ms: int) -> Any:
            cancelled.wait(60)
            return real(command, timeout_ms)

        async with client.lock("a"):
            monkeypatch.setattr(file, "apply", apply)
            closing = asyncio.create_task(client.close())
            await asyncio.sleep(0)  # it is waiting for its keeper now
            closing.cancel()
            cancelled.set()
            with pytest.raises(asyncio.CancelledError):
                await closing
            assert file.users == 0

    with pytest.raises(lockfast.LeaseLostError):
        asyncio.run(story())
