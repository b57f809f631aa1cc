"""The simulator's model of etcd as a network without a server, waiting or faults."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from random import Random
from typing import Any

from lockfast.ports import Signal
from lockfast.runtimes.threads import ThreadSignal
from lockfast.sim.etcd.gateway import Gateway
from lockfast.sim.etcd.state import State
from lockfast.sim.etcd.watches import Watches
from lockfast.sim.etcd.wire import EtcdError
from lockfast.stores.etcd.transport import Json
from lockfast.stores.http.messages import encode


class ModelServer:
    """One server that answers immediately. It counts the requests it receives, and their bytes."""

    def __init__(self) -> None:
        self.now_us = 1_700_000_000_000_000
        self.gateway = Gateway(State(), lambda: self.now_us)
        self.random = Random(1)
        self.requests = 0
        self.bytes = 0

    def call(self, path: str, body: Json) -> Json:
        try:
            reply = self.gateway.call(path, body)
        except EtcdError as error:
            reply = error.body()
        revision = str(self.gateway.state.mvcc.revision)
        for part in (reply, reply.get("result")):
            if isinstance(part, dict) and "header" in part:
                part["header"] = {"revision": revision, **part["header"]}
        self.requests += 1
        self.bytes += len(encode(body)) + len(encode(reply))
        return reply


def parts_of(body: Any) -> Iterator[Json]:
    """Yield every object in a request: its comparisons, its operations, and nested ones."""
    if isinstance(body, list):
        for one in body:
            yield from parts_of(one)
    elif isinstance(body, dict):
        yield body
        for one in body.values():
            yield from parts_of(one)


class ModelNetwork:
    """One client's access to it. Each reading of the clock takes a microsecond."""

    def __init__(self, server: ModelServer | None = None) -> None:
        self.server = server or ModelServer()

    def caller_transport(self) -> ModelTransport:
        return ModelTransport(self.server)

    def keeper_transport(self) -> ModelTransport:
        return ModelTransport(self.server)

    def watcher(self) -> ModelWatcher:
        return ModelWatcher(self.server)

    def now_ms(self) -> int:
        return self.wall_us() // 1000

    def wall_us(self) -> int:
        self.server.now_us += 1
        return self.server.now_us

    def random_bits(self, bits: int) -> int:
        return self.server.random.getrandbits(bits)

    def mutex(self) -> AbstractContextManager[Any]:
        return threading.RLock()


class ModelTransport:
    def __init__(self, server: ModelServer) -> None:
        self._server = server

    async def call(self, path: str, body: str, timeout_ms: int, token: str = "") -> Json:
        return self._server.call(path, json.loads(body))

    async def follow(
        self, create_request: Json, take: Callable[[Json], bool], timeout_ms: int, token: str = ""
    ) -> None:
        watcher = ModelWatcher(self._server)
        await watcher.open([create_request], timeout_ms)
        for message in await watcher.next(0):
            if take(message):
                return
        raise AssertionError("what is followed has not happened")

    def avoid_member(self) -> None: ...

    async def pause(self, span_ms: int) -> None: ...

    def signal(self) -> Signal:
        return ThreadSignal()

    def close(self) -> None: ...


class ModelWatcher:
    """A watch that is read on demand."""

    def __init__(self, server: ModelServer) -> None:
        self._mvcc = server.gateway.state.mvcc
        self._watches: Watches | None = None
        self._told = 0
        self._answers: list[Json] = []

    async def open(self, create_requests: Sequence[Json], timeout_ms: int, token: str = "") -> None:
        self._watches, self._told, self._answers = Watches(self._mvcc), self._mvcc.revision, []
        for request in create_requests:
            self._answers += self._watches.ask({"create_request": request}, self._told)

    async def next(self, timeout_ms: int | None) -> Sequence[Json]:
        if self._watches is None:
            return []
        found, self._answers = [*self._answers, *self._watches.catch_up(self._told)], []
        while self._told < self._mvcc.revision:
            self._told += 1
            found += self._watches.tell(self._told)
        return found

    def is_open(self) -> bool:
        return self._watches is not None

    def interrupt(self) -> None: ...

    def drop(self) -> None:
        self._watches = None

    def close(self) -> None:
        self.drop()
