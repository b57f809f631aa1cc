"""The faults of one worker, injected where a client touches the world.

A paused worker does nothing while its clock continues, as after SIGSTOP: each of its threads stops
at the next point where it waits or sends a request. A crashed worker ends at that point: `Crashed`
is raised in each of its threads, and nothing that they send while they unwind reaches the store.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, Final, NamedTuple

from lockfast.ports import Signal
from lockfast.runtimes import platform
from lockfast.runtimes.threads import ThreadSignal, ThreadsRuntime, run
from lockfast.testing.clock import Clock, SignalOnClock

RATE_MIN: Final = 0.05
RATE_MAX: Final = 20.0


class Crashed(BaseException):
    """Raised in the threads of a worker that has crashed."""


class _Course(NamedTuple):
    """How a clock runs: what it showed at an instant, and its rate since."""

    since_ms: int
    shown_ms: float
    rate: float


class WorkerClock(Clock):
    """The clock of one worker, which may run too fast or too slow."""

    def __init__(self, gate: Callable[[], None]) -> None:
        super().__init__(settle=lambda: None)
        self._gate = gate
        now_ms = platform.now_ms()
        # Replaced as a whole, because other threads read it.
        self._course = _Course(now_ms, now_ms, 1.0)

    @property
    def rate(self) -> float:
        return self._course.rate

    def set_rate(self, rate: float) -> None:
        """Run the clock at `rate` times real time from now on, without a jump."""
        now_ms = platform.now_ms()
        self._course = _Course(now_ms, self._shown_at(now_ms), rate)
        self.wake_sleepers()

    def now_ms(self) -> int:
        return int(self._shown_at(platform.now_ms()))

    def real_ms(self, ms: int) -> int:
        # Round up, so that a waiter does not wake just before its deadline and spin.
        return int(ms / self._course.rate) + 1

    def sleeping(self, sleeper: object, wake_up: Callable[[], None]) -> None:
        # Register as a sleeper before checking the gate, so that a later crash wakes us.
        super().sleeping(sleeper, wake_up)
        self._gate()

    def _shown_at(self, now_ms: int) -> float:
        course = self._course
        return course.shown_ms + (now_ms - course.since_ms) * course.rate


class Faults:
    """The current faults of one worker."""

    def __init__(self) -> None:
        self.clock = WorkerClock(self.gate)
        self.cut_off = False
        self._crashed = False
        self._running = threading.Event()
        self._running.set()

    @property
    def paused(self) -> bool:
        return not self._running.is_set() and not self._crashed

    @property
    def crashed(self) -> bool:
        return self._crashed

    def pause(self) -> None:
        self._running.clear()

    def resume(self) -> None:
        self._running.set()

    def crash(self) -> None:
        self._crashed = True
        self._running.set()
        self.clock.wake_sleepers()

    def gate(self) -> None:
        """Wait while the worker is paused. Raises Crashed if it has crashed."""
        self._running.wait()
        if self._crashed:
            raise Crashed


class WorkerRuntime(ThreadsRuntime):
    """The threads runtime of one worker."""

    def __init__(self, faults: Faults) -> None:
        super().__init__()
        self._faults = faults

    def now_ms(self) -> int:
        return self._faults.clock.now_ms()

    def now_us(self) -> int:
        return self._faults.clock.now_ms() * 1000

    def signal(self) -> Signal:  # type: ignore[override]
        return _WorkerSignal(self._faults)

    def spawn(self, job: Callable[[], Coroutine[Any, Any, None]], name: str) -> None:
        # A worker without a keeper would open one session after another.
        self._faults.gate()

        def until_crash() -> None:
            with suppress(Crashed):
                run(job())

        threading.Thread(target=until_crash, name=name, daemon=True).start()


class _WorkerSignal(SignalOnClock):
    def __init__(self, faults: Faults) -> None:
        super().__init__(faults.clock, ThreadSignal)
        self._faults = faults

    async def wait(self, timeout_ms: int | None) -> bool:
        await super().wait(timeout_ms)
        self._faults.gate()
        return self.is_set()
