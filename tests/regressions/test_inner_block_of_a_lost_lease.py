"""Leaving an inner block of a lost lease raises, even if the outer block is still entered.

An inner release only decremented a count. Under asyncio the block had already undone its own
cancellation and raised nothing instead: the bare CancelledError propagated and ended a task that
nobody had cancelled.
"""

from __future__ import annotations

import asyncio

import pytest

import lockfast
from lockfast import LeaseLostError, aio

URL = "memory://inner-block"


def test_in_threads() -> None:
    with lockfast.connect(URL) as client:
        lock = client.lock("a", reentrant=True, max_hold=0.1)
        outer = lock.acquire()
        with pytest.raises(LeaseLostError):
            with lock as inner:
                assert inner.lost.wait(30)
        with pytest.raises(LeaseLostError):
            outer.release()


def test_in_tasks() -> None:
    async def main() -> None:
        async with aio.connect(URL) as client:
            lock = client.lock("b", reentrant=True, max_hold=0.1)
            outer = await lock.acquire()
            with pytest.raises(LeaseLostError):
                async with lock:
                    await asyncio.sleep(30)
            with pytest.raises(LeaseLostError):
                await outer.release()

    asyncio.run(main())
