"""The PostgreSQL store for asyncio: whole transactions on worker threads.

A step may need several flights, and `core.table` runs between them; a thread per step keeps that
code the same in both APIs. Switching to a thread and back costs a fraction of a commit.
"""

from __future__ import annotations

import asyncio
import os
from concurrent.futures import ThreadPoolExecutor
from time import monotonic

from lockfast.core.commands import Command, Reply
from lockfast.errors import StoreUnavailableError
from lockfast.ports import Wire
from lockfast.stores.postgresql.store import PostgresStore
from lockfast.stores.postgresql.wire import BlockingWire


class AsyncPostgresStore(PostgresStore):
    """A PostgresStore whose callers suspend while a transaction runs."""

    def caller_wire(self) -> Wire:
        return self._owned(_WorkerWire(self))


class _WorkerWire:
    """Run each command on a worker thread.

    Cancelling a caller does not stop the transaction: the outcome is unknown to the caller, and its
    claim is released by number.
    """

    def __init__(self, store: AsyncPostgresStore) -> None:
        self._store = store
        self._blocking = BlockingWire(store.server)
        self._start()

    def _start(self) -> None:
        self._process = os.getpid()
        workers = self._store.server.address.connections_max
        self._workers = ThreadPoolExecutor(workers, thread_name_prefix="lockfast-postgresql")

    @property
    def connections(self) -> int:
        return self._blocking.connections

    async def send(self, command: Command, timeout_ms: int) -> Reply:
        if self._process != os.getpid():
            self._start()  # a fork does not copy the parent's workers
        until_s = monotonic() + timeout_ms / 1000
        try:
            job = asyncio.get_running_loop().run_in_executor(
                self._workers, self._apply, command, until_s
            )
        except RuntimeError:  # the workers are shut down
            raise StoreUnavailableError(
                self._store.label, "the client is closed", "connect again"
            ) from None
        return await job

    def _apply(self, command: Command, until_s: float) -> Reply:
        return self._blocking.apply(command, round((until_s - monotonic()) * 1000))

    def close(self) -> None:
        self._store._wires.discard(self)
        if self._process == os.getpid():
            self._workers.shutdown(wait=False)
        self._blocking.close()
