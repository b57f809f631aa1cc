"""Run a test on each runtime: start jobs, wait for them, and interrupt them.

On threads, a test never suspends: what it awaits blocks, and each job it starts runs on a
new thread. In asyncio, the test and its jobs are tasks.
"""

from __future__ import annotations

import asyncio
import signal
import threading
import time
from collections.abc import Callable, Coroutine
from typing import Any, Final, Generic, Protocol, TypeVar

from lockfast.api import aio, blocking
from lockfast.conformance.faces import BlockingClient, Client
from lockfast.runtimes.threads import ThreadSignal, run

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

PATIENCE_S: Final = 30.0
"""How long a test waits for something that must happen. Only a failure takes that long."""


class Running(Protocol[T_co]):
    """A job that a test has started."""

    def is_done(self) -> bool: ...
    def error(self) -> BaseException | None:
        """The exception that the job raised, once it is done."""
        ...

    async def result(self) -> T_co:
        """Wait for the job and return or raise its result."""
        ...


class Driver(Protocol):
    """One runtime, as far as tests need it."""

    def run(self, story: Coroutine[Any, Any, None]) -> None: ...
    def start(self, job: Coroutine[Any, Any, T]) -> Running[T]: ...
    def now_s(self) -> float: ...
    async def pause(self, seconds: float) -> None: ...
    async def interrupt(
        self, job: Coroutine[Any, Any, object], once: Callable[[], Coroutine[Any, Any, object]]
    ) -> None:
        """Run `job` and interrupt it after `once`: by Ctrl-C on threads, by cancellation in
        asyncio."""
        ...

    def connect(self, url: str, **settings: Any) -> Client: ...


class _OnThread(Generic[T]):
    def __init__(self, job: Coroutine[Any, Any, T]) -> None:
        self._job = job
        self._result: T | None = None
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._result = run(self._job)
        except BaseException as error:
            self._error = error

    def is_done(self) -> bool:
        return not self._thread.is_alive()

    def error(self) -> BaseException | None:
        return self._error

    async def result(self) -> T:
        self._thread.join(PATIENCE_S)
        assert self.is_done(), f"still waiting after {PATIENCE_S} s"
        if self._error is not None:
            raise self._error
        return self._result  # type: ignore[return-value]


class ThreadsDriver:
    """The blocking API."""

    def run(self, story: Coroutine[Any, Any, None]) -> None:
        run(story)

    def start(self, job: Coroutine[Any, Any, T]) -> Running[T]:
        return _OnThread(job)

    def now_s(self) -> float:
        return time.monotonic()

    async def pause(self, seconds: float) -> None:
        ThreadSignal().wait_blocking(int(seconds * 1000))

    async def interrupt(
        self, job: Coroutine[Any, Any, object], once: Callable[[], Coroutine[Any, Any, object]]
    ) -> None:
        # Python interrupts only the main thread, so `job` runs there.
        assert threading.current_thread() is threading.main_thread()
        main = threading.get_ident()

        async def strike() -> None:
            await once()
            signal.pthread_kill(main, signal.SIGINT)

        before = signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            striking = _OnThread(strike())
            await job
        except KeyboardInterrupt:
            await striking.result()
            return
        finally:
            signal.signal(signal.SIGINT, before)
        raise AssertionError("it was not interrupted")

    def connect(self, url: str, **settings: Any) -> Client:
        return BlockingClient(blocking.connect(url, **settings))


class _Task(Generic[T]):
    def __init__(self, job: Coroutine[Any, Any, T]) -> None:
        self.task = asyncio.ensure_future(job)

    def is_done(self) -> bool:
        return self.task.done()

    def error(self) -> BaseException | None:
        if not self.task.done():
            return None
        return asyncio.CancelledError() if self.task.cancelled() else self.task.exception()

    async def result(self) -> T:
        async with asyncio.timeout(PATIENCE_S):
            return await self.task


class AsyncioDriver:
    """The asyncio API."""

    def run(self, story: Coroutine[Any, Any, None]) -> None:
        asyncio.run(story)

    def start(self, job: Coroutine[Any, Any, T]) -> Running[T]:
        return _Task(job)

    def now_s(self) -> float:
        return time.monotonic()

    async def pause(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def interrupt(
        self, job: Coroutine[Any, Any, object], once: Callable[[], Coroutine[Any, Any, object]]
    ) -> None:
        running = _Task(job)
        await once()
        running.task.cancel()
        try:
            await running.result()
        except asyncio.CancelledError:
            return
        raise AssertionError("it was not cancelled")

    def connect(self, url: str, **settings: Any) -> Client:
        return aio.connect(url, **settings)


class UvloopDriver(AsyncioDriver):
    """The asyncio API on uvloop, which replaces asyncio's transports and handles."""

    def run(self, story: Coroutine[Any, Any, None]) -> None:
        import uvloop

        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(story)


DRIVERS: Final[dict[str, Callable[[], Driver]]] = {
    "threads": ThreadsDriver,
    "asyncio": AsyncioDriver,
    "uvloop": UvloopDriver,
}
