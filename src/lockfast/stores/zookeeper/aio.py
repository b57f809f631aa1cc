"""Waiting under asyncio: callbacks pass kazoo's results to the event loop, without threads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lockfast.ports import Signal
from lockfast.runtimes.aio import LoopSignal, running_loop
from lockfast.stores.zookeeper.network import KazooFlight
from lockfast.stores.zookeeper.transport import Answer, Flight


class AsyncWaiting:
    """How tasks of an event loop wait."""

    async def wait(self, flight: Flight, timeout_ms: int) -> Sequence[Answer]:
        assert isinstance(flight, KazooFlight)
        signal = LoopSignal()
        left = len(flight.results)

        def done(result: Any) -> None:
            nonlocal left
            left -= 1  # kazoo calls this from one thread only
            if left <= 0:
                signal.set()

        running_loop()
        for result in flight.results:
            result.rawlink(done)
        if flight.results:
            await signal.wait(timeout_ms)
        return flight.answers()

    def signal(self) -> Signal:
        return LoopSignal()
