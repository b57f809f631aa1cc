"""The simulator's model of etcd as a network of its own: no server, no waiting, no faults."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
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


class ModelNetwork:
    """One server that answers at once. It counts the requests and bytes that reach it."""

    def __init__(self) -> None:
        self.now_us = 1_000_000_000_000
        self.gateway = Gateway(State(), lambda: self.now_us)
        self.requests: list[tuple[str, Json, Json]] = []
        self._random = Random(1)

    def call(self, path: str, body: Json) -> Json:
        try:
            reply = self.gateway.call(path, body)
        except EtcdError as error:
            reply = error.body()
        revision = str(self.gateway.state.mvcc.revision)
        for part in (reply, reply.get("result")):
            if isinstance(part, dict) and "header" in part:
                part["header"] = {"revision": revision, **part["header"]}
        self.requests.append((path, body, reply))
        return reply

    def caller_transport(self) -> ModelTransport:
        return ModelTransport(self)

    def keeper_transport(self) -> ModelTransport:
        return ModelTransport(self)

    def watcher(self) -> ModelWatcher:
        return ModelWatcher(self)

    def now_ms(self) -> int:
        return self.now_us // 1000

    def wall_us(self) -> int:
        return self.now_us

    def random_bits(self, bits: int) -> int:
        return self._random.getrandbits(bits)

    def mutex(self) -> AbstractContextManager[Any]:
        return threading.RLock()


class ModelTransport:
    def __init__(self, network: ModelNetwork) -> None:
        self._network = network

    async def call(self, path: str, body: Json, timeout_ms: int, token: str = "") -> Json:
        return self._network.call(path, body)

    async def follow(
        self, create_request: Json, take: Callable[[Json], bool], timeout_ms: int, token: str = ""
    ) -> None:
        watcher = ModelWatcher(self._network)
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
    """A watch that is read when somebody asks."""

    def __init__(self, network: ModelNetwork) -> None:
        self._mvcc = network.gateway.state.mvcc
        self._watches: Watches | None = None
        self._told = 0

    async def open(self, create_requests: Sequence[Json], timeout_ms: int, token: str = "") -> None:
        self._watches, self._told = Watches(self._mvcc), self._mvcc.revision
        for request in create_requests:
            list(self._watches.ask({"create_request": request}, self._told))

    async def next(self, timeout_ms: int | None) -> Sequence[Json]:
        if self._watches is None:
            return []
        found = list(self._watches.catch_up(self._told))
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
