"""The embedded store for asyncio: whole transactions on one worker thread."""

from __future__ import annotations

import asyncio
import os
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from lockfast.core.commands import Command, Reply
from lockfast.errors import StoreUnavailableError
from lockfast.ports import Wire
from lockfast.stores.sqlite.store import SqliteStore

TRY_MS: Final = 100


class AsyncSqliteStore(SqliteStore):
    """As SqliteStore, for callers that must not block the event loop."""

    def caller_wire(self) -> Wire:
        return _WorkerWire(self)


class _WorkerWire:
    """Runs each command on a worker thread: one hop there and one back.

    Cancelling a caller does not stop its transaction. The caller then does not know the outcome,
    and the keeper releases its claim by number.
    """

    def __init__(self, store: SqliteStore) -> None:
        self._store = store
        self._start()

    def _start(self) -> None:
        self._process = os.getpid()
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="lockfast-sqlite")
        self._answers = True
        """True if the last command that was executed got an answer."""

    async def send(self, command: Command, timeout_ms: int) -> Reply:
        if self._process != os.getpid():
            self._start()  # threads do not survive a fork
        loop = asyncio.get_running_loop()
        until = time.monotonic() + timeout_ms / 1000
        try:
            job = loop.run_in_executor(self._worker, self._apply, command, timeout_ms, until)
        except RuntimeError:  # the worker was shut down
            raise StoreUnavailableError(
                self._store.label, "the client is closed", "connect again"
            ) from None
        return await job

    def _apply(self, command: Command, timeout_ms: int, until: float) -> Reply:
        # The time a command waited for the worker counts only while the store does not answer.
        # Otherwise many waiting commands would make a working store look unavailable.
        if not self._answers:
            timeout_ms = round((until - time.monotonic()) * 1000)
        self._answers = False
        reply = self._store.file().apply(command, max(TRY_MS, timeout_ms))
        self._answers = True
        return reply

    def close(self) -> None:
        if self._process == os.getpid():
            self._worker.shutdown(wait=False)
