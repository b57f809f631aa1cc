"""A signal identified its event loop by the thread, which outlives the loop.

Setting the signal of an abandoned wait from that thread then called into the closed loop, and
whatever set it (a release, a revocation) failed with "Event loop is closed".
"""

from __future__ import annotations

import asyncio
import threading

import pytest

from lockfast.runtimes.aio import LoopSignal

pytestmark = pytest.mark.usefixtures("each_loop")


def abandoned(signal: LoopSignal) -> asyncio.Task[bool]:
    """Wait for the signal on a loop that is closed before the wait has ended."""
    loop = asyncio.events.new_event_loop()
    task = loop.create_task(signal.wait(None))
    loop.run_until_complete(asyncio.sleep(0))
    loop.close()
    return task


def test_set_from_the_thread_of_a_closed_loop() -> None:
    signal = LoopSignal()
    task = abandoned(signal)
    signal.set()
    assert signal.is_set()
    assert not task.done()
    task._log_destroy_pending = False  # type: ignore[attr-defined]


def test_set_from_a_thread_without_a_loop() -> None:
    """The waiter is woken, whatever thread sets the signal."""

    async def story() -> bool:
        signal = LoopSignal()
        threading.Timer(0, signal.set).start()
        return await signal.wait(10_000)

    assert asyncio.run(story())
