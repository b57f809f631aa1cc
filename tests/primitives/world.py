"""The world of a test of a primitive: one store, one API, and everything it has started."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

import lockfast
from lockfast.conformance.harness import Harness, Stage
from lockfast.core.commands import Command
from lockfast.flow.admin import LockInfo
from lockfast.ports import Capabilities
from tests.logs import begin_log
from tests.primitives import faces

PATIENCE_MS = 30_000


class Flag:
    """A flag that one sets and any number of threads or tasks wait for."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._set = threading.Event()

    def set(self) -> None:
        self._set.set()

    def is_set(self) -> bool:
        return self._set.is_set()

    async def wait(self) -> None:
        async def is_set() -> bool:
            return self._set.is_set()

        await self._world.until(is_set)


class World(Stage):
    """A driver whose clients have every primitive."""

    def __init__(self, url: str, face: str) -> None:
        super().__init__(Harness(url, face, Capabilities()))
        self.url = url
        self.face = face
        with lockfast.connect(url) as client:
            begin_log(client)  # so that a test can read every event in it

    def client(self, **settings: Any) -> Any:
        client = faces.connect(self.face, self.url, **settings)
        self._clients.append(client)
        return client

    def clients(self, count: int, **settings: Any) -> list[Any]:
        return [self.client(**settings) for _ in range(count)]

    async def interrupt(
        self, job: Coroutine[Any, Any, object], once: Callable[[], Coroutine[Any, Any, object]]
    ) -> None:
        """Interrupt a thread with Ctrl-C, or cancel a task, as soon as `once` returns.

        Python notices a signal that arrives just before a thread begins to wait only when the next
        one comes, so the signal is repeated until it is noticed.
        """
        if self.face == "asyncio":
            await super().interrupt(job, once)
            return
        main, noticed = threading.get_ident(), threading.Event()

        def handle(number: int, frame: object) -> None:
            if not noticed.is_set():
                noticed.set()
                raise KeyboardInterrupt

        async def strike() -> None:
            await once()
            while not noticed.is_set():
                signal.pthread_kill(main, signal.SIGINT)
                noticed.wait(0.05)

        before = signal.signal(signal.SIGINT, handle)
        try:
            striking = self.start(strike())
            with pytest.raises(KeyboardInterrupt):
                await job
            await striking.result()
        finally:
            signal.signal(signal.SIGINT, before)

    def flag(self) -> Flag:
        return Flag(self)

    async def until_seen(
        self, client: Any, name: str, seen: Callable[[LockInfo], object], kind: str = "lock"
    ) -> LockInfo:
        """Wait until `seen` is true of a lock, and return the lock."""
        found: list[LockInfo] = []

        async def look() -> bool:
            found[:] = [await client.inspect(name, kind=kind)]
            return bool(seen(found[0]))

        try:
            await self.until(look)
        except AssertionError:
            raise AssertionError(f"still {found}") from None
        return found[0]

    async def until_queued(
        self, client: Any, name: str, count: int = 1, kind: str = "lock"
    ) -> LockInfo:
        """Wait until this many claims wait for a lock."""
        return await self.until_seen(client, name, lambda info: info.waiting_count == count, kind)

    async def queue(
        self, client: Any, name: str, jobs: list[Coroutine[Any, Any, Any]], kind: str = "lock"
    ) -> list[Any]:
        """Start jobs that wait for a lock, one behind the other."""
        before = (await client.inspect(name, kind=kind)).waiting_count
        running = []
        for count, job in enumerate(jobs, before + 1):
            running.append(self.start(job))
            await self.until_queued(client, name, count, kind)
        return running


class Counter:
    """Records the commands that a client sends."""

    def __init__(self, client: Any) -> None:
        self.sent: list[Command] = []
        core = getattr(client, "it", client)._core
        send = core.wire.send

        async def counted(command: Command, timeout_ms: int) -> Any:
            self.sent.append(command)
            return await send(command, timeout_ms)

        core.wire.send = counted

    def names(self) -> list[str]:
        return [type(command).__name__ for command in self.sent]


def core_of(client: Any) -> Any:
    """Return the part of a client that both APIs share."""
    return getattr(client, "it", client)._core
