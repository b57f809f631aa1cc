"""The signals that tasks wait for: set by any thread, or over at their timeout."""

from __future__ import annotations

import asyncio
import threading

from lockfast.runtimes import aio
from lockfast.runtimes.aio import SHARED_TIMER_MS, LoopSignal


def test_a_wait_ends_at_its_timeout_and_not_before() -> None:
    """Long timeouts share timers, short ones have their own."""

    async def waits(timeout_ms: int) -> float:
        began_s = asyncio.get_running_loop().time()
        assert not await LoopSignal().wait(timeout_ms)
        return asyncio.get_running_loop().time() - began_s

    async def story() -> tuple[float, float, float]:
        return await asyncio.gather(waits(20), waits(SHARED_TIMER_MS), waits(SHARED_TIMER_MS + 5))

    took_s = asyncio.run(story())
    expected_ms = (20, SHARED_TIMER_MS, SHARED_TIMER_MS + 5)
    assert all(s * 1000 >= ms - 1 for s, ms in zip(took_s, expected_ms, strict=True))


def test_a_signal_that_was_set_leaves_nothing_behind() -> None:
    async def story() -> None:
        signal = LoopSignal()
        threading.Timer(0.01, signal.set).start()
        assert await signal.wait(60_000)
        cancelled = asyncio.create_task(LoopSignal().wait(60_000))
        await asyncio.sleep(0)
        cancelled.cancel()
        await asyncio.wait([cancelled])
        assert not any(aio._timers[asyncio.get_running_loop()].values())

    asyncio.run(story())
