"""A lease that two threads or tasks release at the same time is released, not lost.

The second `Leave` found no claim, so the lease was reported as lost: `release()` raised
LeaseLostError, and `on_lost` callbacks ran, twice.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

import lockfast
from lockfast import LeaseState, aio
from lockfast.core.commands import Command, Leave, Reply

PATIENCE_S = 60.0


class InterposingWire:
    """Runs a job between the first `Leave` and its reply."""

    def __init__(self, core: Any, job: Callable[[], Awaitable[None]]) -> None:
        self._wire = core.wire
        self._job: Callable[[], Awaitable[None]] | None = job

    def __getattr__(self, name: str) -> Any:
        return getattr(self._wire, name)

    async def send(self, command: Command, timeout_ms: int) -> Reply:
        reply: Reply = await self._wire.send(command, timeout_ms)
        job = self._job
        if isinstance(command, Leave) and job is not None:
            self._job = None
            await job()
        return reply


def test_by_two_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    with lockfast.connect("memory://released-by-two-threads") as client:
        lost: list[object] = []
        errors: list[Exception] = []
        lease = client.lock("a").acquire()
        lease.on_lost(lost.append)

        def release() -> None:
            try:
                lease.release()
            except lockfast.LockfastError as error:
                errors.append(error)

        async def release_in_a_thread() -> None:
            other = threading.Thread(target=release)
            other.start()
            other.join(PATIENCE_S)

        wire = InterposingWire(client._core, release_in_a_thread)
        monkeypatch.setattr(client._core, "wire", wire)
        lease.release()
        assert errors == []
        assert lease.state is LeaseState.RELEASED
    assert lost == [], "callbacks have run before the client is closed"


def test_by_two_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        async with aio.connect("memory://released-by-two-tasks") as client:
            lease = await client.lock("a").acquire()

            async def release_in_a_task() -> None:
                await asyncio.create_task(lease.release())

            wire = InterposingWire(client._core, release_in_a_task)
            monkeypatch.setattr(client._core, "wire", wire)
            await lease.release()
            assert lease.state is LeaseState.RELEASED
            async with client.lock("a", timeout=PATIENCE_S):
                pass

    asyncio.run(scenario())
