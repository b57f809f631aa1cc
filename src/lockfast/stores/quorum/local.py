"""Nodes that run in this process, as function calls: in memory, or in SQLite files."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from lockfast.core.commands import WAKE_FREE, Wake
from lockfast.ports import Deliver, Runtime, WakeListener
from lockfast.stores.memory import MemoryWakeListener
from lockfast.stores.quorum.flights import Answers, Flights, Judge, Late
from lockfast.stores.quorum.messages import Answer, FreeWake, NoAnswer, Request


class LocalNode(Protocol):
    """What a store must provide to be a node: execute one request, atomically and durably."""

    def apply(self, request: Request) -> tuple[Answer | NoAnswer, list[FreeWake]]: ...
    def close(self) -> None: ...


class LocalNodes:
    """All nodes of one name, shared by the clients of this process."""

    def __init__(self, each: Sequence[LocalNode]) -> None:
        self.each = each
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

    def close(self) -> None:
        for node in self.each:
            node.close()


class LocalBackend:
    """A client's access to nodes in its own process."""

    def __init__(self, nodes: LocalNodes, runtime: Runtime) -> None:
        self._nodes = nodes
        self._runtime = runtime

    @property
    def nodes(self) -> int:
        return len(self._nodes.each)

    def caller_flights(self) -> Flights:
        return _LocalFlights(self._nodes)

    def keeper_flights(self) -> Flights:
        return _LocalFlights(self._nodes)

    def wake_listener(self, session: str, deliver: Deliver) -> WakeListener:
        return MemoryWakeListener(self._nodes, self._runtime, session, deliver)

    def close(self) -> None:
        """Close files. Other clients of this process open them again when they need them."""
        self._nodes.close()


class _LocalFlights:
    def __init__(self, nodes: LocalNodes) -> None:
        self._nodes = nodes

    async def ask(
        self, requests: Sequence[Request | None], judge: Judge, timeout_ms: int, late: Late
    ) -> Answers:
        return self._nodes.apply(requests)

    def post(self, requests: Sequence[Request | None]) -> None:
        self._nodes.apply(requests)

    def close(self) -> None:
        """Do nothing: there is no connection."""
