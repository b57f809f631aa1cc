"""The simulator's model of ZooKeeper as a network without a server, waiting or faults."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from random import Random
from typing import Any

from lockfast.ports import Signal
from lockfast.runtimes.threads import ThreadSignal
from lockfast.sim.zookeeper.state import State
from lockfast.stores.zookeeper.transport import (
    Answer,
    Flight,
    Get,
    LinkLostError,
    OnAnswer,
    OnEvent,
    Request,
)


class ModelServer:
    """One server that answers immediately. It counts the requests it receives, and their bytes."""

    def __init__(self) -> None:
        self.now_us = 1_700_000_000_000_000
        self.state = State(self._fired)
        self.random = Random(1)
        self.links: dict[int, ModelLink] = {}
        self.requests = 0
        self.writes = 0
        self.bytes_read = 0
        self.before: Callable[[Request], None] | None = None
        """Called before each request, also between those of one flight."""

    def _fired(self, session: int, path: str) -> None:
        self.links[session].on_event(path)


class ModelNetwork:
    """One client's access to it. Each reading of the clock takes a microsecond."""

    def __init__(self, server: ModelServer | None = None) -> None:
        self.server = server or ModelServer()
        self.caller = self.keeper = self  # both wait alike

    def link(
        self, timeout_ms: int, on_event: OnEvent, on_lost: Callable[[], None], *, pings: bool
    ) -> ModelLink:
        return ModelLink(self.server, timeout_ms, on_event, on_lost)

    async def wait(self, flight: Flight, timeout_ms: int) -> Sequence[Answer]:
        assert isinstance(flight, ModelFlight)
        if flight.is_lost:
            raise LinkLostError
        return flight.answers

    def signal(self) -> Signal:
        return ThreadSignal()

    def now_ms(self) -> int:
        return self.wall_us() // 1000

    def wall_us(self) -> int:
        self.server.now_us += 1
        return self.server.now_us

    def random_bits(self, bits: int) -> int:
        return self.server.random.getrandbits(bits)

    def mutex(self) -> AbstractContextManager[Any]:
        return threading.RLock()


class ModelFlight:
    def __init__(self, answers: Sequence[Answer], *, is_lost: bool = False) -> None:
        self.answers = answers
        self.is_lost = is_lost


class ModelLink:
    def __init__(
        self, server: ModelServer, timeout_ms: int, on_event: OnEvent, on_lost: Callable[[], None]
    ) -> None:
        self.timeout_ms = 0
        self.session = 0
        self.on_event = on_event
        self._asked_ms = timeout_ms
        self._server = server
        self._on_lost = on_lost

    def open(self) -> ModelFlight:
        self.session = len(self._server.links) + 1
        self._server.links[self.session] = self
        self._server.state.open(self.session)
        self.timeout_ms = self._asked_ms
        return ModelFlight([])

    def submit(self, requests: Sequence[Request]) -> ModelFlight:
        if self.is_lost():
            return ModelFlight([], is_lost=True)
        server = self._server
        server.now_us += 1
        answers = []
        for request in requests:
            if server.before is not None:
                server.before(request)
            before = server.state.zxid
            answer = server.state.apply(self.session, request, server.now_us // 1000)
            answers.append(answer)
            server.requests += 1
            server.writes += server.state.zxid > before
            server.bytes_read += len(answer.data) + sum(map(len, answer.children))
        return ModelFlight(answers)

    def watch(self, path: str, on_answer: OnAnswer) -> None:
        flight = self.submit([Get(path, True)])
        on_answer(None if flight.is_lost else flight.answers[0])

    def is_lost(self) -> bool:
        return bool(self.session) and self.session not in self._server.state.sessions

    def close(self) -> None:
        self._server.state.end(self.session)

    def expire(self) -> None:
        self._server.state.end(self.session)
        self._on_lost()
