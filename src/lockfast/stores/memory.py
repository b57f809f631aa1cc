"""The memory store: a lock table in one process, for tests, simulations and threads.

All clients of a process that connect to the same `memory://[name]` share one table.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

from lockfast.core.commands import (
    WAKE_GRANTED,
    WAKE_LOOK,
    Blocker,
    Command,
    Reply,
    Wake,
)
from lockfast.core.memory_rows import MemoryRows
from lockfast.core.table import Limits, Table
from lockfast.errors import StoreUnavailableError
from lockfast.ports import Capabilities, Deliver, Runtime, Signal, Store, WakeListener, Wire
from lockfast.runtimes.platform import at_fork, now_ms
from lockfast.runtimes.threads import ThreadsRuntime
from lockfast.stores.registry import Face, StoreUrl
from lockfast.stores.undo import UndoableRows


def wall_us() -> int:
    return time.time_ns() // 1000


class MemoryTable:
    """A lock table with its clock and the wake listeners of its sessions. Clients share it."""

    def __init__(
        self,
        now_ms: Callable[[], int],
        wall_us: Callable[[], int] = wall_us,
        mutex: AbstractContextManager[Any] | None = None,
        limits: Limits | None = None,
    ) -> None:
        self._now_ms = now_ms
        self._wall_us = wall_us
        self._limits = limits
        self.start(mutex)

    def start(self, mutex: AbstractContextManager[Any] | None = None) -> None:
        """Start with an empty table. Called again in a forked child."""
        # Ctrl-C may interrupt a step, so its changes must be undoable.
        self.rows = MemoryRows() if mutex is not None else UndoableRows()
        self.table = Table(self.rows, self._limits)
        self.commands = 0
        # Re-entrant, so that a signal handler during a step gets an error instead of hanging.
        self._mutex = mutex if mutex is not None else threading.RLock()
        self._inside = False
        self._listeners: dict[str, Deliver] = {}

    def apply(self, command: Command) -> Reply:
        """Execute one command and deliver its wakes."""
        wakes: list[Wake] = []
        try:
            with self._mutex:
                if self._inside:
                    raise StoreUnavailableError(
                        "memory://",
                        "called from a signal handler or finalizer that interrupted a step",
                        "call it after the handler has returned",
                    )
                reply = self._step(command, wakes)
            for wake in wakes:
                self._tell(wake)
        except BaseException:
            # The step may have been executed: wake its sessions, so that they check.
            for wake in wakes:
                self._tell(wake._replace(what=WAKE_LOOK) if wake.what == WAKE_GRANTED else wake)
            raise
        return reply

    def _step(self, command: Command, wakes: list[Wake]) -> Reply:
        rows = self.rows
        try:
            self._inside = True
            self.commands += 1
            reply, wakes[:] = self.table.apply(command, self._now_ms(), self._wall_us())
            if isinstance(rows, UndoableRows):
                rows.keep()
            return reply
        except BaseException:
            if isinstance(rows, UndoableRows):
                rows.undo()
            raise
        finally:
            self._inside = False

    def _tell(self, wake: Wake) -> None:
        deliver = self._listeners.get(wake.inbox)
        if deliver is not None:
            deliver(wake)

    def attach(self, inbox: str, deliver: Deliver) -> None:
        self._listeners[inbox] = deliver

    def detach(self, inbox: str) -> None:
        self._listeners.pop(inbox, None)


class MemoryStore:
    """A client's access to a table in its own process."""

    capabilities = Capabilities()
    listens_for_all = True

    def __init__(self, table: MemoryTable, runtime: Runtime, label: str = "memory://") -> None:
        self.label = label
        self._table = table
        self._runtime = runtime

    def caller_wire(self) -> Wire:
        return _MemoryWire(self._table)

    def keeper_wire(self) -> Wire:
        return _MemoryWire(self._table)

    def wake_listener(self, session: str, deliver: Deliver) -> WakeListener:
        return MemoryWakeListener(self._table, self._runtime, session, deliver)

    def close(self) -> None:
        """Do nothing: the table stays for other clients."""


class _MemoryWire:
    def __init__(self, table: MemoryTable) -> None:
        self._table = table

    async def send(self, command: Command, timeout_ms: int) -> Reply:
        return self._table.apply(command)

    def close(self) -> None:
        """Do nothing: there is no connection."""


class WakeSource(Protocol):
    """Delivers wakes within the process: a lock table, or the nodes of a majority."""

    def attach(self, inbox: str, deliver: Deliver) -> None: ...
    def detach(self, inbox: str) -> None: ...


class MemoryWakeListener:
    """A listener that only waits for `interrupt`, because `source` delivers wakes directly."""

    process = ""

    def __init__(
        self, source: WakeSource, runtime: Runtime, session: str, deliver: Deliver
    ) -> None:
        self.inbox = session or f"all of {id(self)}"
        self._source = source
        self._runtime = runtime
        self._reader: Signal = runtime.signal()
        source.attach(self.inbox, deliver)

    async def listen(self, timeout_ms: int | None) -> Sequence[Wake]:
        await self._reader.wait(timeout_ms)
        # An `interrupt` before this line is not lost: its cause was recorded before it was
        # called, and the keeper checks for causes before it listens again.
        self._reader = self._runtime.signal()
        return ()

    def interrupt(self) -> None:
        self._reader.set()

    def watch_over(self, n: int, blockers: Sequence[Blocker]) -> None:
        """Do nothing: all clients are in this process."""

    def dead(self, blockers: Sequence[Blocker]) -> Sequence[str]:
        return ()

    def close(self) -> None:
        self._source.detach(self.inbox)


_tables: dict[tuple[str, str], MemoryTable] = {}
_mutex = threading.Lock()


def open_store(url: StoreUrl, face: Face, *, death_watch: bool = True) -> Store:
    url.refuse_other_options()
    # One store for both APIs: keepers always run on threads, and no command blocks.
    with _mutex:
        table = _tables.setdefault((url.location, url.namespace), MemoryTable(now_ms))
    return MemoryStore(table, ThreadsRuntime(), url.label)


def _after_fork_in_child() -> None:
    """Reset the tables in a forked child, where no lock is held."""
    global _mutex
    _mutex = threading.Lock()
    for table in _tables.values():
        table.start()


at_fork(after_in_child=_after_fork_in_child)
