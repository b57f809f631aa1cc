"""The three runtimes as stages on which the same scenario is played.

A scenario is an `async def` over a `Stage`. On threads its coroutines never suspend, so each runs
on its own thread; on asyncio and in the simulator they are tasks.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import AbstractContextManager
from typing import Any, Protocol, TypeVar

from lockfast.core.commands import Command, Inspect, Place, Reply, ResourceView
from lockfast.errors import StoreUnavailableError
from lockfast.flow.acquire import acquire
from lockfast.flow.client import Core
from lockfast.flow.holding import Ask, Holding
from lockfast.ports import Runtime, Signal, Wire
from lockfast.runtimes.aio import AsyncioRuntime
from lockfast.runtimes.platform import now_ms
from lockfast.runtimes.threads import ThreadSignal, ThreadsRuntime, run
from lockfast.sim.runtime import Cancelled, Host, Kernel
from lockfast.stores.memory import MemoryStore, MemoryTable

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

PATIENCE_MS = 20_000
"""Longer than anything here takes: only a bug makes a scenario wait that long."""


class ObservedTable(MemoryTable):
    """A table on which tests can wait for a condition."""

    def __init__(
        self, now_ms: Callable[[], int], mutex: AbstractContextManager[Any] | None = None
    ) -> None:
        super().__init__(now_ms, mutex=mutex)
        self.watchers: list[Signal] = []

    def apply(self, command: Command) -> Reply:
        reply = super().apply(command)
        for watcher in list(self.watchers):
            watcher.set()
        return reply

    def view(self, name: str) -> ResourceView:
        with self._mutex:
            view, _ = self.table.apply(Inspect("lock", name), self._now_ms(), 0)
        assert isinstance(view, ResourceView)
        return view


class CuttableStore(MemoryStore):
    """A memory store whose connection can be cut."""

    def __init__(self, table: MemoryTable, runtime: Runtime) -> None:
        super().__init__(table, runtime)
        self.cut = False

    def caller_wire(self) -> Wire:
        return _CuttableWire(self, super().caller_wire())

    def keeper_wire(self) -> Wire:
        return _CuttableWire(self, super().keeper_wire())


class _CuttableWire:
    def __init__(self, store: CuttableStore, wire: Wire) -> None:
        self._store = store
        self._wire = wire

    async def send(self, command: Command, timeout_ms: int) -> Reply:
        if self._store.cut:
            raise StoreUnavailableError("memory://", "the connection is cut")
        return await self._wire.send(command, timeout_ms)

    def close(self) -> None:
        self._wire.close()


class Job(Protocol[T_co]):
    """A job that runs concurrently with the scenario."""

    def cancel(self) -> None: ...
    async def join(self) -> T_co: ...


class Stage:
    """A table, its clients, and a way to run several jobs at once."""

    name: str
    stopped: type[BaseException]
    """The exception with which a cancelled job ends."""
    runtime: Runtime
    keeper_runtime: Runtime
    table: ObservedTable

    def start(self, job: Coroutine[Any, Any, T], name: str) -> Job[T]:
        raise NotImplementedError

    def core(self, owner: str, ttl_ms: int = 30_000) -> Core:
        store = CuttableStore(self.table, self.keeper_runtime)
        return Core(store, self.runtime, self.keeper_runtime, ttl_ms=ttl_ms, owner=owner)

    async def until(self, truth: Callable[[], bool], at_ms: int | None = None) -> None:
        """Wait until a condition holds; check it again after each command."""
        signal = self.runtime.signal()
        while True:
            self.table.watchers.append(signal)
            try:
                if truth():
                    return
                assert await signal.wait(PATIENCE_MS), "it never became true"
            finally:
                self.table.watchers.remove(signal)
            signal = self.runtime.signal()

    async def pass_time(self, ms: int) -> None:
        """Let time pass, by waiting for a signal that never comes."""
        assert not await self.runtime.signal().wait(ms)


async def take(
    core: Core,
    name: str = "a",
    timeout_ms: int | None = None,
    max_hold_ms: int = 0,
) -> Holding | None:
    """Acquire a lock; return None on timeout."""
    ask = Ask((Place("lock", name, "exclusive"),), core.ttl_ms, max_hold_ms=max_hold_ms)
    holding = core.holding(ask)
    return holding if await acquire(core, holding, timeout_ms) else None


async def must_take(core: Core, name: str = "a", max_hold_ms: int = 0) -> Holding:
    holding = await take(core, name, max_hold_ms=max_hold_ms)
    assert holding is not None
    return holding


# ── threads ──────────────────────────────────────────────────────────────────────────


class _Interruptible(ThreadsRuntime):
    """Threads whose waits an exception can end, as Ctrl-C does in a main thread."""

    def __init__(self) -> None:
        super().__init__()
        self.here = threading.local()

    def signal(self) -> ThreadSignal:
        signal = _InterruptibleSignal()
        job = getattr(self.here, "job", None)
        if job is not None:
            job.waits_at = signal
            signal.job = job
        return signal


class _InterruptibleSignal(ThreadSignal):
    __slots__ = ("job",)

    def __init__(self) -> None:
        super().__init__()
        self.job: _ThreadJob[Any] | None = None

    async def wait(self, timeout_ms: int | None) -> bool:
        found = self.wait_blocking(timeout_ms)
        if self.job is not None and self.job.cancelled:
            raise KeyboardInterrupt
        return found


class _ThreadJob(Job[T]):
    def __init__(self, runtime: _Interruptible, job: Coroutine[Any, Any, T], name: str) -> None:
        self.cancelled = False
        self.waits_at: ThreadSignal | None = None
        self._job = job
        self._runtime = runtime
        self._result: T
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name=name)
        self._thread.start()

    def _run(self) -> None:
        self._runtime.here.job = self
        try:
            self._result = run(self._job)
        except BaseException as error:
            self._error = error

    def cancel(self) -> None:
        self.cancelled = True
        if self.waits_at is not None:
            self.waits_at.set()

    async def join(self) -> T:
        self._thread.join(PATIENCE_MS / 1000)
        assert not self._thread.is_alive(), f"{self._thread.name} hangs"
        if self._error is not None:
            raise self._error
        return self._result


class ThreadsStage(Stage):
    name = "threads"
    stopped = KeyboardInterrupt

    def __init__(self) -> None:
        self.runtime = self._interruptible = _Interruptible()
        self.keeper_runtime = ThreadsRuntime()
        self.table = ObservedTable(now_ms)

    def start(self, job: Coroutine[Any, Any, T], name: str) -> Job[T]:
        return _ThreadJob(self._interruptible, job, name)


# ── asyncio ──────────────────────────────────────────────────────────────────────────


class _LoopJob(Job[T]):
    def __init__(self, task: asyncio.Task[T]) -> None:
        self._task = task

    def cancel(self) -> None:
        self._task.cancel()

    async def join(self) -> T:
        return await self._task


class AsyncioStage(Stage):
    name = "asyncio"
    stopped = asyncio.CancelledError

    def __init__(self) -> None:
        self.runtime = AsyncioRuntime()
        self.keeper_runtime = ThreadsRuntime()
        self.table = ObservedTable(now_ms)

    def start(self, job: Coroutine[Any, Any, T], name: str) -> Job[T]:
        return _LoopJob(asyncio.get_running_loop().create_task(job, name=name))


# ── the simulator ────────────────────────────────────────────────────────────────────


class SimStage(Stage):
    name = "simulator"
    stopped = Cancelled

    def __init__(self, seed: int = 1) -> None:
        self.kernel = Kernel(seed)
        self.host = Host(self.kernel, "host")
        self.runtime = self.keeper_runtime = self.host
        self.table = ObservedTable(self.host.now_ms)

    def start(self, job: Coroutine[Any, Any, T], name: str) -> Job[T]:
        return self.host.start(job, name)


Scenario = Callable[[Stage], Awaitable[T]]


def play_on_threads(scenario: Callable[[Stage], Coroutine[Any, Any, T]]) -> T:
    return run(scenario(ThreadsStage()))


def play_on_asyncio(scenario: Callable[[Stage], Coroutine[Any, Any, T]]) -> T:
    async def main() -> T:
        return await scenario(AsyncioStage())

    return asyncio.run(main())


def play_in_simulator(scenario: Callable[[Stage], Coroutine[Any, Any, T]]) -> T:
    stage = SimStage()
    try:
        return stage.kernel.run_until_done(stage.host.start(scenario(stage), "scenario"))
    finally:
        stage.host.crash()
