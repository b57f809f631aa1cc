"""A retained lock hung for good when one of its users was interrupted at the wrong moment.

A user that got Ctrl-C after it was admitted and before it had the lease had nothing to release: the
lock stayed in use, also for other processes. A user that was cancelled while it released the
exhausted grant stayed in the local queue, and when its turn came, no user requested the next grant.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
from collections.abc import Coroutine
from typing import Any

import pytest

import lockfast
import lockfast.aio
from lockfast.api.blocking import recipes
from lockfast.core.commands import Leave


def test_ctrl_c_as_soon_as_it_is_let_in(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(job: Coroutine[Any, Any, Any]) -> Any:
        run(job)
        raise KeyboardInterrupt

    run = recipes.run
    url = "memory://kept-ctrl-c"
    with lockfast.connect(url) as client, lockfast.connect(url) as other:
        lock = client.lock("a", retain=True)
        with monkeypatch.context() as patch:
            patch.setattr(recipes, "run", interrupted)
            with pytest.warns(ResourceWarning, match="never released"):
                with contextlib.suppress(KeyboardInterrupt):
                    lock.acquire()
                gc.collect()

        other.lock("a").acquire(timeout=60).release()
        lock.acquire(timeout=60).release()


class HoldsUpLeave:
    """A wire on which a release blocks until it is cancelled."""

    def __init__(self, wire: Any) -> None:
        self._wire = wire
        self.leaving = asyncio.Event()

    async def send(self, command: Any, timeout_ms: int) -> Any:
        if isinstance(command, Leave):
            self.leaving.set()
            await asyncio.Event().wait()
        return await self._wire.send(command, timeout_ms)

    def close(self) -> None:
        self._wire.close()


async def cancelled_while_it_gives_back() -> None:
    async with lockfast.aio.connect("memory://kept-cancelled") as client:
        lock = client.lock("a", retain=True)
        async with lock:
            pass
        (keep,) = client._retained_locks.values()
        keep._next_token = keep._last_token + 1  # its tokens are used up
        client._core.wire = wire = HoldsUpLeave(client._core.wire)

        task = asyncio.create_task(lock.acquire())
        await wire.leaving.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

        client._core.wire = wire._wire
        lease = await lock.acquire(timeout=60)
        await lease.release()


def test_cancelled_while_it_gives_back() -> None:
    asyncio.run(cancelled_while_it_gives_back())
