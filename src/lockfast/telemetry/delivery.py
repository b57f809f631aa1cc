"""Deliver events to observers without ever delaying or breaking the code that emits them.

Each observer has its own bounded queue and its own daemon thread. Emitting appends to a deque:
no lock, no wait, no exception. The thread collects events for a few milliseconds before it
calls the observer, so that a busy process is not interrupted by a thread switch per event. If
an observer is too slow, its newest events are dropped and counted; if it raises, the error is
counted and the next event is delivered. The first drop and the first error are logged.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from typing import Any, Final

from lockfast.flow.log import logger
from lockfast.runtimes.platform import at_fork

QUEUE_MAX: Final = 10_000
"""The most events that wait for one observer."""
COLLECT_S: Final = 0.02
"""How long events are collected before the observer is called."""
IDLE_S: Final = 10.0
"""After this long without events, the thread of an observer ends."""

_all: weakref.WeakSet[Delivery] = weakref.WeakSet()


class Delivery:
    """One observer behind its queue. Call it with an event; it returns at once."""

    def __init__(self, observer: Callable[[Any], None]) -> None:
        self.observer = observer
        self.delivered = 0
        self.dropped = 0
        """Events dropped because the observer was too slow."""
        self.errors = 0
        """Events for which the observer raised."""
        self._start()
        _all.add(self)

    def _start(self) -> None:
        """Initialize the state; again in a forked child, which has no thread and no events."""
        self._events: deque[Any] = deque()
        self._wake = threading.Event()
        self._idle = True
        self._closed = False
        self._busy = False
        self._thread: threading.Thread | None = None
        self._starting = threading.Lock()
        self._delivering = threading.Lock()

    def __call__(self, event: Any) -> None:
        events = self._events
        if len(events) >= QUEUE_MAX:
            self._drop()
            return
        events.append(event)
        if self._idle:
            # Only the first event after a pause wakes the thread.
            self._idle = False
            if self._thread is None:
                self._spawn()
            self._wake.set()

    def _drop(self) -> None:
        self.dropped += 1
        if self.dropped == 1:
            logger.warning(
                "observer %r is too slow: %d events wait for it, so new ones are dropped",
                self.observer,
                QUEUE_MAX,
            )

    def _spawn(self) -> None:
        with self._starting:
            if self._thread is not None or self._closed:
                return
            thread = threading.Thread(target=self._run, name="lockfast-observer", daemon=True)
            try:
                thread.start()
            except RuntimeError:
                return  # no more threads, or the interpreter is shutting down: events wait
            self._thread = thread

    def _run(self) -> None:
        while not self._closed or self._events:
            if not self._wake.wait(IDLE_S) and self._retire():
                return
            if not self._closed:
                time.sleep(COLLECT_S)
            self._wake.clear()
            # Set before the queue is emptied: an event appended from now on wakes us again.
            self._idle = True
            self._deliver()

    def _retire(self) -> bool:
        """End an idle thread; the next event starts another. Return False if one has arrived."""
        with self._starting:
            if self._events:
                return False
            self._thread = None
            self._idle = True
        if self._events:
            self._spawn()  # it came after the check and found us still there
        return True

    def _deliver(self) -> None:
        with self._delivering:
            self._busy = True
            try:
                while self._events:
                    event = self._events.popleft()
                    try:
                        self.observer(event)
                    except Exception as error:
                        self._failed(event, error)
                    self.delivered += 1
            finally:
                self._busy = False

    def drain(self) -> None:
        """Deliver pending events on the calling thread, for observers known to be quick."""
        self._deliver()

    def _failed(self, event: Any, error: Exception) -> None:
        self.errors += 1
        if self.errors == 1:
            logger.warning(
                "observer %r failed on %s: %r; later failures are only counted",
                self.observer,
                type(event).__name__,
                error,
            )

    def flush(self, timeout: float = 2.0) -> bool:
        """Wait until everything emitted so far is delivered. Return False on a timeout."""
        until = time.monotonic() + timeout
        while self._events or self._busy:
            if time.monotonic() >= until or self._thread is None:
                return False
            time.sleep(COLLECT_S / 10)
        return True

    def close(self, timeout: float = 2.0) -> None:
        """Deliver pending events, for at most `timeout` seconds, and end the thread."""
        self.flush(timeout)
        self.close_soon()

    def close_soon(self) -> None:
        """End the thread after it has delivered pending events, without waiting for it."""
        self._closed = True
        self._wake.set()

    def restart_after_fork(self) -> None:
        reset = getattr(self.observer, "reset", None)
        if callable(reset):
            reset()  # it may count what the parent holds
        self.delivered = self.dropped = self.errors = 0
        self._start()


def _after_fork_in_child() -> None:
    for delivery in list(_all):
        delivery.restart_after_fork()


at_fork(after_in_child=_after_fork_in_child)
