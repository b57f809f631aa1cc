"""Many tasks in one queue, and an event loop that is blocked."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest

import lockfast.aio
from lockfast.core import memory_rows
from lockfast.core.commands import WAKE_GRANTED, Wake
from lockfast.flow.session import Session
from lockfast.stores.sqlite.rows import SqliteRows

WAITERS = 10_000


@pytest.fixture(params=["memory", "sqlite"])
def url(request: pytest.FixtureRequest, quick_path: Path) -> str:
    return (
        f"memory://{quick_path.name}" if request.param == "memory" else f"sqlite://{quick_path}/l"
    )


def test_ten_thousand_waiters(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """All are served in order, each by one wake, and the last costs as much as the first."""
    wakes: list[Wake] = []
    deliver = Session._deliver

    def counted(session: Session, wake: Wake) -> None:
        wakes.append(wake)
        deliver(session, wake)

    operations = 0
    rows: Any = memory_rows.MemoryRows if url.startswith("memory") else SqliteRows
    for name in ("get", "put", "delete", "scan"):
        real = getattr(rows, name)

        def count(self: Any, *args: Any, _real: Any = real, **kwargs: Any) -> Any:
            nonlocal operations
            operations += 1
            return _real(self, *args, **kwargs)

        monkeypatch.setattr(rows, name, count)
    monkeypatch.setattr(Session, "_deliver", counted)
    served: list[int] = []
    costs: list[int] = []

    async def wait_in_line(lock: lockfast.aio.Lock, i: int) -> None:
        nonlocal operations
        lease = await lock.acquire()
        served.append(i)
        operations = 0
        await lease.release()
        costs.append(operations)

    async def story() -> None:
        async with lockfast.aio.connect(url) as client:
            lock = client.lock("crowd")
            first = await lock.acquire()
            tasks = [asyncio.create_task(wait_in_line(lock, i)) for i in range(WAITERS)]
            while (await client.inspect("crowd")).waiting_count < WAITERS:
                await asyncio.sleep(0.05)
            wakes.clear()
            await first.release()
            await asyncio.gather(*tasks)

    asyncio.run(story())

    assert served == list(range(WAITERS))
    granted = [wake for wake in wakes if wake.what == WAKE_GRANTED]
    assert len(granted) == WAITERS
    assert len(wakes) <= WAITERS, "more than one wake for a grant"
    early, late = sorted(costs[:500])[250], sorted(costs[-600:-100])[250]
    assert abs(early - late) <= 2, f"{early} row operations with the line full, {late} at its end"


def test_a_loop_that_does_not_turn_loses_nothing(url: str) -> None:
    """Two TTLs of blocking work inside a coroutine: the keeper has its own thread."""

    async def story() -> None:
        async with lockfast.aio.connect(url, ttl=0.5) as client:
            async with client.lock("crowd") as lease:
                token = lease.token
                time.sleep(2 * 0.5)  # this is what is tested: nothing else runs on this thread
                lease.check()
            assert lease.token == token

    asyncio.run(story())
