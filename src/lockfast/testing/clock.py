"""A clock that tests can move, and the runtimes that use it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from lockfast.api import settings
from lockfast.api.settings import Seconds
from lockfast.ports import Runtime, Signal
from lockfast.runtimes import platform
from lockfast.runtimes.threads import ThreadSignal, ThreadsRuntime
from lockfast.stores.registry import Face


class Clock:
    """The clock of a controlled store and of its clients. It runs, and tests can advance it."""

    def __init__(self, settle: Callable[[], None]) -> None:
        self._ahead_ms = 0
        self._settle = settle
        self._mutex = threading.Lock()
        self._sleeping: dict[int, Callable[[], None]] = {}

    def advance(self, seconds: Seconds) -> None:
        """Let this much time pass at once, for the store and for all its clients.

        Timeouts, TTLs, `max_hold` and the windows of `once` that are over by then have
        passed when this returns. An advance by up to 90 % of a TTL loses no lease: clients renew
        before this returns, unless the store is down. An advance by a TTL or more loses every
        lease, as if the whole machine had been suspended.
        """
        ms = settings.to_ms(seconds, "seconds")
        with self._mutex:
            # Clients add a millisecond to windows and delays, because clocks show whole ones.
            self._ahead_ms += ms + 1
        self.wake_sleepers()
        self._settle()

    def now_ms(self) -> int:
        """Read the clock of leases."""
        return platform.now_ms() + self._ahead_ms

    def wall_us(self) -> int:
        """Read the wall clock, which tokens follow."""
        return time.time_ns() // 1000 + self._ahead_ms * 1000

    def runtime(self, face: Face) -> Runtime:
        """Return the runtime of one API on this clock."""
        if face == "threads":
            return ThreadsOnClock(self)
        from lockfast.testing.aio import AsyncioOnClock

        return AsyncioOnClock(self)

    def real_ms(self, ms: int) -> int:
        """Return how long to sleep until `ms` have passed on this clock."""
        return ms

    def wake_sleepers(self) -> None:
        """Make every waiter read the clock again."""
        with self._mutex:
            wake_ups = list(self._sleeping.values())
        for wake_up in wake_ups:
            wake_up()

    def sleeping(self, sleeper: object, wake_up: Callable[[], None]) -> None:
        with self._mutex:
            self._sleeping[id(sleeper)] = wake_up

    def awake(self, sleeper: object) -> None:
        with self._mutex:
            self._sleeping.pop(id(sleeper), None)


class ThreadsOnClock(ThreadsRuntime):
    """The threads runtime on a clock that tests can move."""

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self._clock = clock

    def now_ms(self) -> int:
        return self._clock.now_ms()

    def signal(self) -> Signal:  # type: ignore[override]
        return SignalOnClock(self._clock, ThreadSignal)


class SignalOnClock:
    """A flag for one waiter, whose timeout follows a clock that tests move."""

    def __init__(self, clock: Clock, make: Callable[[], Signal]) -> None:
        self._clock = clock
        self._make = make
        self._is_set = False
        self._inner: Signal | None = None

    def set(self) -> None:
        self._is_set = True
        inner = self._inner
        if inner is not None:
            inner.set()

    def is_set(self) -> bool:
        return self._is_set

    async def wait(self, timeout_ms: int | None) -> bool:
        until_ms = None if timeout_ms is None else self._clock.now_ms() + timeout_ms
        try:
            while True:
                # Register before reading the flag and the clock, so that any later change wakes us.
                self._inner = inner = self._make()
                self._clock.sleeping(self, inner.set)
                left_ms = None if until_ms is None else until_ms - self._clock.now_ms()
                if self._is_set or (left_ms is not None and left_ms <= 0):
                    return self._is_set
                await inner.wait(None if left_ms is None else self._clock.real_ms(left_ms))
        finally:
            self._clock.awake(self)
