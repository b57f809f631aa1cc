"""The asyncio runtime, for API calls only. Keepers run on threads."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import sys
from collections.abc import Callable, Coroutine
from typing import Any
from weakref import WeakKeyDictionary

from lockfast.errors import UnsupportedError
from lockfast.runtimes.threads import ThreadsRuntime

_task_numbers = itertools.count(1)
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


class LoopSignal:
    """A flag for one waiting task. Any thread may set it."""

    __slots__ = ("_future", "_is_set", "_loop")

    def __init__(self) -> None:
        self._is_set = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._future: asyncio.Future[None] | None = None

    def set(self) -> None:
        self._is_set = True
        loop = self._loop
        if loop is None:
            return
        if asyncio._get_running_loop() is loop:
            self._resolve()  # called from the loop: no need to wake it
        else:
            # A closed loop raises RuntimeError; no task waits on it any more.
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(self._resolve)

    def is_set(self) -> bool:
        return self._is_set

    async def wait(self, timeout_ms: int | None) -> bool:
        loop = running_loop()
        self._future = future = loop.create_future()
        # Publish the loop before reading the flag, so that a later `set` finds the loop.
        self._loop = loop
        if self._is_set:
            return True
        timer = None
        if timeout_ms is not None:
            timer = loop.call_later(max(0, timeout_ms) / 1000, self._resolve)
        try:
            await future
        finally:
            if timer is not None:
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
