"""The memory store on the simulator's runtime: the same tests, in virtual time."""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable, Coroutine
from typing import Any, Generic, TypeVar

from lockfast.api import aio
from lockfast.api.aio.lease import Lease as AioLease
from lockfast.conformance.drivers import PATIENCE_S, Running
from lockfast.conformance.faces import Client
from lockfast.conformance.harness import Harness
from lockfast.flow.client import Core
from lockfast.flow.holding import LeaseState
from lockfast.ports import Capabilities, Store
from lockfast.sim.runtime import Cancelled, Host, Kernel, Task
from lockfast.stores.memory import MemoryStore, MemoryTable

T = TypeVar("T")


class _Running(Generic[T]):
    def __init__(self, task: Task[T]) -> None:
        self.task = task

    def is_done(self) -> bool:
        return self.task.done

    def error(self) -> BaseException | None:
        return self.task.error

    async def result(self) -> T:
        return await self.task.join()


class SimDriver:
    """Runs tests on one simulated host."""

    def __init__(self, host: Host) -> None:
        self.host = host
        self._numbers = itertools.count(1)

    def run(self, story: Coroutine[Any, Any, None]) -> None:
        kernel = self.host.kernel
        try:
            kernel.run_until_done(self._task(story), limit=kernel.now + int(60 * PATIENCE_S * 1e6))
        finally:
            self.host.crash()

    def start(self, job: Coroutine[Any, Any, T]) -> Running[T]:
        return _Running(self._task(job))

    def _task(self, job: Coroutine[Any, Any, T]) -> Task[T]:
        return self.host.start(job, f"task-{next(self._numbers)}")

    def now_s(self) -> float:
        return self.host.now_ms() / 1000

    async def pause(self, seconds: float) -> None:
        await self.host.sleep(seconds * 1000)

    async def interrupt(
        self, job: Coroutine[Any, Any, object], once: Callable[[], Coroutine[Any, Any, object]]
    ) -> None:
        task = self._task(job)
        await once()
        task.cancel()
        try:
            await task.join()
        except Cancelled:
            return
        raise AssertionError("it was not cancelled")

    def connect(self, url: str, **settings: Any) -> Client:
        raise NotImplementedError("a simulated client is made by its harness")


class _Lost:
    def __init__(self, lease: _Lease) -> None:
        self._lease = lease

    def is_set(self) -> bool:
        return self._lease.state is LeaseState.LOST

    async def wait(self, timeout: Any = None) -> bool:
        signal = self._lease._core.runtime.signal()
        self._lease._on_end(signal.set)
        await signal.wait(None if timeout is None else int(timeout * 1000))
        return self.is_set()


class _Lease(AioLease):
    """The asyncio API's lease, except for what needs asyncio's loop and task."""

    @property
    def lost(self) -> _Lost:  # type: ignore[override]
        return _Lost(self)

    def on_lost(self, callback: Callable[[Any], None]) -> None:
        self._on_end(lambda: callback(self) if self.lost.is_set() else None)

    def _open_block(self) -> None:
        """Do nothing: a simulated task is not cancelled; it sees the loss when the block ends."""

    def _close_block(self, kind: type[BaseException] | None) -> bool:
        return False


class SimClient(aio.Client):
    """The asyncio API on the simulator's runtime."""

    def __init__(self, host: Host, store: Store, settings: dict[str, Any]) -> None:
        ttl = settings.pop("ttl", 30)
        self._core = Core(
            store,
            host,
            host,
            ttl_ms=int(ttl * 1000),
            owner=settings.pop("owner", "simulated"),
            metadata=settings.pop("metadata", ""),
        )
        assert not settings
        self._leases_of = weakref.WeakValueDictionary()
        self._retained_locks = {}

    def lock(self, name: str, **settings: Any) -> Any:
        made = super().lock(name, **settings)
        made._lease = _Lease
        return made


class SimHarness(Harness):
    """A memory table on a simulated host, whose clock everything uses."""

    def __init__(self, seed: int, log_kept: int) -> None:
        self.url = "memory://simulated"
        self.capabilities = Capabilities()
        self.log_kept = log_kept
        self._host = Host(Kernel(seed), "host")
        self._table = MemoryTable(self._host.now_ms, self._host.clock.wall_us, self._host.mutex())
        self.driver = SimDriver(self._host)

    def store(self) -> Store:
        return MemoryStore(self._table, self._host, self.url)

    def client(self, **settings: Any) -> Client:
        client: Client = SimClient(self._host, self.store(), settings)
        return client
