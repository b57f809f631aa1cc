"""A worker's access to the lock table of its scene, with the worker's faults.

`playground://SCENE` is the table itself, for the server; `playground://SCENE/WORKER` is what one
worker sees of it. Both exist only in the process of the scene.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence

from lockfast.core.commands import Blocker, Command, Reply, Wake
from lockfast.errors import StoreUnavailableError, UnsupportedError
from lockfast.playground.faults import Faults, WorkerRuntime
from lockfast.ports import WAKE_MISSED, Capabilities, Deliver, Runtime, Store, WakeListener, Wire
from lockfast.runtimes.threads import ThreadsRuntime
from lockfast.stores.memory import MemoryStore, MemoryTable
from lockfast.stores.registry import Face, StoreUrl

scenes: dict[str, MemoryTable] = {}
"""The lock table of each scene."""
workers: dict[str, Faults] = {}
"""The faults of each live worker, by SCENE/WORKER."""


class WorkerStore:
    """The store as one worker accesses it."""

    capabilities = Capabilities()

    def __init__(self, table: MemoryTable, faults: Faults, label: str) -> None:
        self.label = label
        self._table = table
        self._faults = faults

    def runtime(self, face: Face) -> Runtime:
        return WorkerRuntime(self._faults)

    def caller_wire(self) -> Wire:
        return _WorkerWire(self._table, self._faults, self.label)

    def keeper_wire(self) -> Wire:
        return self.caller_wire()

    def wake_listener(self, session: str, deliver: Deliver) -> WakeListener:
        # Deliver wakes through `listen`, on the worker's own thread: while the worker is paused, no
        # other client's thread may act for it.
        return _WorkerListener(self._table, self._faults, session)

    def close(self) -> None:
        """Do nothing: the table stays for the other workers."""


class _WorkerWire:
    def __init__(self, table: MemoryTable, faults: Faults, label: str) -> None:
        self._table = table
        self._faults = faults
        self._label = label

    async def send(self, command: Command, timeout_ms: int) -> Reply:
        self._faults.gate()
        if self._faults.cut_off:
            raise StoreUnavailableError(self._label, "this worker is cut off from the store")
        reply = self._table.apply(command)
        self._faults.gate()
        return reply

    def close(self) -> None:
        """Do nothing: there is no connection."""


class _WorkerListener:
    process = ""

    def __init__(self, table: MemoryTable, faults: Faults, session: str) -> None:
        self.inbox = session
        self._table = table
        self._faults = faults
        self._runtime = WorkerRuntime(faults)
        self._mutex = threading.Lock()
        self._heard: deque[Wake] = deque()
        self._missed = False
        self._reader = self._runtime.signal()
        table.attach(session, self._hear)

    def _hear(self, wake: Wake) -> None:
        """Queue a wake from another client's thread; while cut off, note that one was missed."""
        if self._faults.cut_off:
            self._missed = True
            return
        with self._mutex:
            self._heard.append(wake)
        self._reader.set()

    async def listen(self, timeout_ms: int | None) -> Sequence[Wake]:
        if not self._heard:
            await self._reader.wait(timeout_ms)
        self._faults.gate()
        self._reader = self._runtime.signal()
        with self._mutex:
            heard = list(self._heard)
            self._heard.clear()
        if self._missed and not self._faults.cut_off:
            self._missed = False
            heard.append(Wake(self.inbox, self.inbox, 0, WAKE_MISSED))
        return heard

    def interrupt(self) -> None:
        self._reader.set()

    def watch_over(self, n: int, blockers: Sequence[Blocker]) -> None:
        """Do nothing: workers are threads, and the death of a thread is not observed."""

    def dead(self, blockers: Sequence[Blocker]) -> Sequence[str]:
        return ()

    def close(self) -> None:
        self._table.detach(self.inbox)


def open_store(url: StoreUrl, face: Face, *, death_watch: bool = True) -> Store:
    url.refuse_other_options()
    scene, _, worker = url.location.partition("/")
    table, faults = scenes.get(scene), workers.get(url.location)
    if table is None or (worker and faults is None):
        raise UnsupportedError(
            url.label, "there is no such playground in this process", "run `lockfast playground`"
        )
    if faults is None:
        return MemoryStore(table, ThreadsRuntime(), url.label)
    return WorkerStore(table, faults, url.label)
