"""The asyncio runtime on a clock that tests can move."""

from __future__ import annotations

from lockfast.ports import Signal
from lockfast.runtimes.aio import AsyncioRuntime, LoopSignal
from lockfast.testing.clock import Clock, SignalOnClock


class AsyncioOnClock(AsyncioRuntime):
    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self._clock = clock

    def now_ms(self) -> int:
        return self._clock.now_ms()

    def signal(self) -> Signal:  # type: ignore[override]
        return SignalOnClock(self._clock, LoopSignal)
