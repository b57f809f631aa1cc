"""The PostgreSQL store for asyncio: whole transactions on worker threads.

A step may need several flights, and `core.table` runs between them; a thread per step keeps that
code the same in both APIs. Switching to a thread and back costs a fraction of a commit.
"""

from __future__ import annotations

import asyncio
import os
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from time import monotonic
from typing import NamedTuple

from lockfast.core.commands import Command, Leave, Reply
from lockfast.errors import StoreUnavailableError
from lockfast.ports import Wire
from lockfast.stores.postgresql.store import PostgresStore
from lockfast.stores.postgresql.wire import BlockingWire


class AsyncPostgresStore(PostgresStore):
    """A PostgresStore whose callers suspend while a transaction runs."""

    def caller_wire(self) -> Wire:
        return self._owned(_WorkerWire(self))


class _WorkerWire:
    """Run each command on a worker thread, releases first.

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
        self._leaving: deque[_Job] = deque()
        self._others: deque[_Job] = deque()

    @property
    def connections(self) -> int:
        return self._blocking.connections

    async def send(self, command: Command, timeout_ms: int) -> Reply:
        if self._process != os.getpid():
            self._start()  # a fork does not copy the parent's workers
        reply: Future[Reply] = Future()
        jobs = self._leaving if isinstance(command, Leave) else self._others
        jobs.append(_Job(command, monotonic(), timeout_ms, reply))
        try:
            self._workers.submit(self._work)
        except RuntimeError:  # the workers are shut down
            raise StoreUnavailableError(
                self._store.label, "the client is closed", "connect again"
            ) from None
        return await asyncio.wrap_future(reply)

    def _work(self) -> None:
        """Do one job; there are as many calls as jobs."""
        try:
            # A thousand callers that enter a queue must not delay the one that leaves it.
            job = self._leaving.popleft()
        except IndexError:
            job = self._others.popleft()
        if job.reply.set_running_or_notify_cancel():
            try:
                left_ms = job.timeout_ms - round((monotonic() - job.began_s) * 1000)
                # Half of the time is for the command itself.
                if left_ms < job.timeout_ms / 2:
                    raise self._store.server.busy()
                job.reply.set_result(self._blocking.apply(job.command, left_ms))
            except BaseException as error:
                job.reply.set_exception(error)
            finally:
                del job  # the error's traceback refers to this frame

    def close(self) -> None:
        self._store._wires.discard(self)
        if self._process == os.getpid():
            self._workers.shutdown(wait=False)
        self._blocking.close()


class _Job(NamedTuple):
    command: Command
    began_s: float
    timeout_ms: int
    reply: Future[Reply]
