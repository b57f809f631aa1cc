"""Nodes in this process whose requests block, for asyncio: each flight runs on a worker thread."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from lockfast.errors import StoreUnavailableError
from lockfast.ports import Runtime
from lockfast.stores.quorum.flights import Answers, Flights, Judge, Late
from lockfast.stores.quorum.local import LocalBackend, LocalNodes
from lockfast.stores.quorum.messages import NoAnswer, Request


class AsyncLocalBackend(LocalBackend):
    """A LocalBackend for callers that must not block the event loop."""

    def __init__(self, nodes: LocalNodes, runtime: Runtime) -> None:
        super().__init__(nodes, runtime)
        self._callers: list[_WorkerFlights] = []

    def caller_flights(self) -> Flights:
        flights = _WorkerFlights(self._nodes)
        self._callers.append(flights)
        return flights

    def close(self) -> None:
        for flights in self._callers:
            flights.close()
        super().close()


class _WorkerFlights:
    """Runs flights on a worker thread, in order.

    Cancelling a caller does not stop its flight: the keeper releases what it may have won.
    """

    def __init__(self, nodes: LocalNodes) -> None:
        self._nodes = nodes
        self._start()

    def _start(self) -> None:
        self._process = os.getpid()
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="lockfast-quorum")

    async def ask(
        self, requests: Sequence[Request | None], judge: Judge, timeout_ms: int, late: Late
    ) -> Answers:
        if self._process != os.getpid():
            self._start()  # threads do not survive a fork
        loop = asyncio.get_running_loop()
        try:
            job = loop.run_in_executor(self._worker, self._nodes.apply, requests)
        except RuntimeError:  # the worker was shut down
            closed = StoreUnavailableError("quorum", "the client is closed", "connect again")
            return [NoAnswer(closed)] * len(requests)
        return await job

    def post(self, requests: Sequence[Request | None]) -> None:
        if self._process == os.getpid():
            self._worker.submit(self._nodes.apply, requests)

    def close(self) -> None:
        if self._process == os.getpid():
            self._worker.shutdown(wait=False)
