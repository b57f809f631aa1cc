"""The asyncio runtime, for API calls only. Keepers run on threads."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import sys
import threading
from collections.abc import Callable, Coroutine
from typing import Any, Final
from weakref import WeakKeyDictionary

from lockfast.errors import UnsupportedError
from lockfast.runtimes.threads import ThreadsRuntime

SHARED_TIMER_MS: Final = 1000
"""Timeouts from here on share timers, so they may end up to TIMER_STEP_S late."""
TIMER_STEP_S: Final = 1 / 64

_task_numbers = itertools.count(1)
_timers: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[int, set[LoopSignal]]] = (
    WeakKeyDictionary()
)
_tasks: WeakKeyDictionary[asyncio.Task[Any], str] = WeakKeyDictionary()


def running_loop() -> asyncio.AbstractEventLoop:
    """Return the running event loop; raise UnsupportedError under trio."""
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        refuse_other_loops()
        raise


def is_running() -> bool:
    """Return True if the caller runs in an event loop of asyncio."""
    return asyncio._get_running_loop() is not None


def refuse_other_loops() -> None:
    """Raise UnsupportedError if the current task is one of trio."""
    trio = sys.modules.get("trio")
    if trio is None:
        return
    try:
        trio.lowlevel.current_task()
    except RuntimeError:
        return
    raise UnsupportedError(
        "lockfast.aio under trio",
        "it needs an asyncio event loop",
        "use the blocking API in trio.to_thread.run_sync(), or anyio's asyncio backend",
    )


def _timed_by(loop: asyncio.AbstractEventLoop, timeout_ms: int) -> set[LoopSignal]:
    """Return the signals that one timer resolves, at the end of the step `timeout_ms` ends in.

    Few waits last until their timeout, so creating and cancelling a timer for each of them
    would cost more than everything else they do.
    """
    steps = _timers.get(loop)
    if steps is None:
        steps = _timers[loop] = {}
    step = int((loop.time() + timeout_ms / 1000) / TIMER_STEP_S) + 1
    found = steps.get(step)
    if found is None:
        found = steps[step] = set()
        loop.call_at(step * TIMER_STEP_S, _resolve_all, steps, step)
    return found


def _resolve_all(steps: dict[int, set[LoopSignal]], step: int) -> None:
    for signal in list(steps.pop(step)):
        signal._resolve()


class LoopSignal:
    """A flag for one waiting task. Any thread may set it."""

    __slots__ = ("_future", "_is_set", "_loop", "_thread")

    def __init__(self) -> None:
        self._is_set = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._future: asyncio.Future[None] | None = None
        self._thread = 0

    def set(self) -> None:
        self._is_set = True
        loop = self._loop
        if loop is None:
            return
        if self._thread == threading.get_ident():
            self._resolve()  # already on the loop's thread: no need to wake it
        else:
            # A closed loop raises RuntimeError; no task waits on it any more.
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(self._resolve)

    def is_set(self) -> bool:
        return self._is_set

    async def wait(self, timeout_ms: int | None) -> bool:
        loop = running_loop()
        self._future = future = loop.create_future()
        self._thread = threading.get_ident()
        # Publish the loop before reading the flag, so that a later `set` finds the loop.
        self._loop = loop
        if self._is_set:
            return True
        if timeout_ms is None:
            await future
        elif timeout_ms >= SHARED_TIMER_MS:
            timed = _timed_by(loop, timeout_ms)
            timed.add(self)
            try:
                await future
            finally:
                timed.discard(self)
        else:
            timer = loop.call_later(max(0, timeout_ms) / 1000, self._resolve)
            try:
                await future
            finally:
                timer.cancel()
        return self._is_set

    def _resolve(self) -> None:
        future = self._future
        if future is not None and not future.done():
            future.set_result(None)


class AsyncioRuntime(ThreadsRuntime):
    """Like ThreadsRuntime, but waiting suspends the task instead of blocking the thread."""

    def signal(self) -> LoopSignal:  # type: ignore[override]
        return LoopSignal()

    def spawn(self, job: Callable[[], Coroutine[Any, Any, None]], name: str) -> None:
        raise NotImplementedError("background jobs run on the threads runtime")

    def actor(self) -> str:
        try:
            task = asyncio.current_task()
        except RuntimeError:
            refuse_other_loops()
            task = None
        if task is None:
            return super().actor()
        actor = _tasks.get(task)
        if actor is None:
            actor = _tasks[task] = f"task-{next(_task_numbers)}"
        return actor
