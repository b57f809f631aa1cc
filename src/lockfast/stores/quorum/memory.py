"""Nodes in the memory of this process, for tests."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from lockfast.core.commands import WAKE_FREE, Wake
from lockfast.errors import StoreUnavailableError
from lockfast.ports import Deliver, Runtime, WakeListener
from lockfast.stores.memory import MemoryWakeListener, wall_us
from lockfast.stores.quorum.flights import Answers, Flights, Judge, Late
from lockfast.stores.quorum.messages import Answer, FreeWake, NoAnswer, Request
from lockfast.stores.quorum.node import SKEW_US, Node


class MemoryNode:
    """One node and its clock; `down` makes it refuse every request."""

    def __init__(self, now_ms: Callable[[], int], skew_us: int) -> None:
        self.down = False
        self.node = Node(skew_us)
        self._now_ms = now_ms
        self._mutex = threading.RLock()

    def apply(self, request: Request) -> tuple[Answer | NoAnswer, list[FreeWake]]:
        if self.down:
            return NoAnswer(StoreUnavailableError("memory", "the node is down")), []
        with self._mutex:
            return self.node.apply(request, self._now_ms(), wall_us())


class MemoryNodes:
    """All nodes of one name, shared by the clients of this process."""

    def __init__(self, count: int, now_ms: Callable[[], int], skew_us: int = SKEW_US) -> None:
        self.each = [MemoryNode(now_ms, skew_us) for _ in range(count)]
        self._listeners: dict[str, Deliver] = {}

    def apply(self, requests: Sequence[Request | None]) -> Answers:
        answers: list[Answer | NoAnswer | None] = []
        told: list[FreeWake] = []
        for node, request in zip(self.each, requests, strict=True):
            answer, wakes = node.apply(request) if request is not None else (None, [])
            answers.append(answer)
            told += wakes
        for inbox, session, n in dict.fromkeys(told):
            deliver = self._listeners.get(inbox)
            if deliver is not None:
                deliver(Wake(inbox, session, n, WAKE_FREE))
        return answers

    def attach(self, inbox: str, deliver: Deliver) -> None:
        self._listeners[inbox] = deliver

    def detach(self, inbox: str) -> None:
        self._listeners.pop(inbox, None)


class MemoryBackend:
    """A client's access to nodes in its own process."""

    def __init__(self, nodes: MemoryNodes, runtime: Runtime) -> None:
        self._nodes = nodes
        self._runtime = runtime

    @property
    def nodes(self) -> int:
        return len(self._nodes.each)

    def caller_flights(self) -> Flights:
        return _MemoryFlights(self._nodes)

    def keeper_flights(self) -> Flights:
        return _MemoryFlights(self._nodes)

    def wake_listener(self, session: str, deliver: Deliver) -> WakeListener:
        return MemoryWakeListener(self._nodes, self._runtime, session, deliver)

    def close(self) -> None:
        """Do nothing: the nodes stay, for other clients."""


class _MemoryFlights:
    def __init__(self, nodes: MemoryNodes) -> None:
        self._nodes = nodes

    async def ask(
        self, requests: Sequence[Request | None], judge: Judge, timeout_ms: int, late: Late
    ) -> Answers:
        return self._nodes.apply(requests)

    def post(self, requests: Sequence[Request | None]) -> None:
        self._nodes.apply(requests)

    def close(self) -> None:
        """Do nothing: there is no connection."""
