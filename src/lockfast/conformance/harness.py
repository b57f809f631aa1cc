"""What a store's author gives to have a store tried, and what stories are told on."""

from __future__ import annotations

import functools
from collections.abc import Callable, Coroutine
from typing import Any, Concatenate, ParamSpec, TypeVar

import pytest

from lockfast.conformance.callers import Caller, Listener
from lockfast.conformance.drivers import DRIVERS, PATIENCE_S, Driver, Running
from lockfast.conformance.faces import Client
from lockfast.core.commands import Command, Reply
from lockfast.errors import UnsupportedError
from lockfast.flow.capabilities import checked_wire
from lockfast.ports import Capabilities, Store
from lockfast.stores.registry import open_store

T = TypeVar("T")
P = ParamSpec("P")

LOOK_EVERY_S = 0.005
SEND_MS = 10_000
SEVERAL_USED = 4
"""As many places as stories about several at once make use of."""


class Harness:
    """One store in one face, in a namespace that nobody has used before.

    `log_kept` is how many entries of the log the store keeps at least; the suite writes
    some more to see the older ones go. A store whose clock the test can move overrides
    `pass_ms`, and the suite hardly takes any time.
    """

    def __init__(
        self,
        url: str,
        face: str,
        capabilities: Capabilities,
        *,
        log_kept: int = 10_000,
    ) -> None:
        self.url = url
        self.capabilities = capabilities
        self.log_kept = log_kept
        self.driver: Driver = DRIVERS[face]()
        self._face = face

    def store(self) -> Store:
        """A way to the store for callers of this face."""
        return open_store(self.url, "threads" if self._face == "threads" else "asyncio")

    def client(self, **settings: Any) -> Client:
        """A client of this face."""
        return self.driver.connect(self.url, **settings)

    async def pass_ms(self, span_ms: int) -> None:
        """Let at least this much time pass on the store's clock."""
        await self.driver.pause((span_ms + 1) / 1000)


class Stage:
    """Where one story is told: its clients and sessions, and all it has started."""

    def __init__(self, harness: Harness) -> None:
        self.harness = harness
        self.can = harness.capabilities
        self._driver = harness.driver
        self._clients: list[Client] = []
        self._stores: list[Store] = []
        self._listeners: list[Listener] = []
        self._running: list[Running[Any]] = []
        self._kept: list[object] = []

    def play(self, story: Coroutine[Any, Any, None], needs: tuple[str, ...]) -> None:
        """Tell a story to its end; one that needs more than was declared must be refused."""

        refused: list[UnsupportedError] = []

        async def told() -> None:
            try:
                await story
            except UnsupportedError as error:
                # With it the leases of the story live on, until closing gives them back.
                refused.append(error)
            finally:
                await self._close()

        self._driver.run(told())
        lacking = [need for need in needs if not self._declared(need)]
        if lacking:
            assert refused, f"it needs {lacking}, which is not declared, and was not refused"
        elif refused:
            raise refused[0]

    def _declared(self, need: str) -> bool:
        if need == "several":
            return self.can.several >= SEVERAL_USED
        if need == "waiting":
            return self.can.queue or self.can.contend
        return bool(getattr(self.can, need))

    async def _close(self) -> None:
        for client in self._clients:
            await client.close()
        for running in self._running:
            try:
                await running.result()
            except Exception:
                pass  # it was the story's to see; here it only has to be over
        for listener in self._listeners:
            listener.close()
        for store in self._stores:
            store.close()

    # ── at the wire ──────────────────────────────────────────────────────────────────

    def sender(self) -> Callable[[Command], Coroutine[Any, Any, Reply]]:
        """A connection of its own, for commands."""
        store = self.harness.store()
        self._stores.append(store)
        wire = checked_wire(store.caller_wire(), store.capabilities)

        async def send(command: Command) -> Reply:
            return await wire.send(command, SEND_MS)

        return send

    def callers(self, *sessions: str, ttl_ms: int = 30_000) -> list[Caller]:
        """Sessions that do nothing by themselves, each on a connection of its own."""
        return [Caller(self.sender(), session, ttl_ms, self.can.queue) for session in sessions]

    def listener(self, session: str) -> Listener:
        """The listener of a session that does nothing by itself."""
        store = self.harness.store()
        self._stores.append(store)
        listener = Listener(store, session, self._driver)
        self._listeners.append(listener)
        return listener

    async def pass_ms(self, span_ms: int) -> None:
        """Let at least this much time pass on the store's clock."""
        await self.harness.pass_ms(span_ms)

    # ── through clients ──────────────────────────────────────────────────────────────

    def client(self, **settings: Any) -> Client:
        client = self.harness.client(**settings)
        self._clients.append(client)
        return client

    def clients(self, count: int, **settings: Any) -> list[Client]:
        return [self.client(**settings) for _ in range(count)]

    def keep(self, lease: T) -> T:
        """Have a lease live to the end of the story, so that closing gives it back."""
        self._kept.append(lease)
        return lease

    def start(self, job: Coroutine[Any, Any, T]) -> Running[T]:
        """Have something done beside the story: by a thread, or a task."""
        running = self._driver.start(job)
        self._running.append(running)
        return running

    async def interrupt(
        self, job: Coroutine[Any, Any, object], once: Callable[[], Coroutine[Any, Any, object]]
    ) -> None:
        """Ctrl-C for a thread, cancellation for a task, as soon as `once` returns."""
        await self._driver.interrupt(job, once)

    async def until(self, condition: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """What `condition` returns once that is true, looking again and again in patience."""
        give_up_s = self._driver.now_s() + PATIENCE_S
        while not (found := await condition()):
            for running in self._running:
                error = running.error()
                if error is not None:
                    raise error
            assert self._driver.now_s() < give_up_s, f"still {found!r} after {PATIENCE_S} s"
            await self._driver.pause(LOOK_EVERY_S)
        return found

    async def until_waiting(self, client: Client, name: str, count: int = 1) -> None:
        """Until so many claims wait for a lock."""

        async def waiting() -> bool:
            return (await client.inspect(name)).waiting_count == count

        await self.until(waiting)


def story(
    *needs: str,
) -> Callable[
    [Callable[Concatenate[Any, Stage, P], Coroutine[Any, Any, None]]],
    Callable[Concatenate[Any, Stage, P], None],
]:
    """Make a story a test; `needs` are the capabilities without which it is refused."""

    def decorate(
        tell: Callable[Concatenate[Any, Stage, P], Coroutine[Any, Any, None]],
    ) -> Callable[Concatenate[Any, Stage, P], None]:
        @functools.wraps(tell)
        def test(self: Any, stage: Stage, *args: P.args, **kwargs: P.kwargs) -> None:
            stage.play(tell(self, stage, *args, **kwargs), needs)

        return test  # type: ignore[return-value]  # it has names where a Callable has none

    return decorate


class Contract:
    """Stories about one thing. Whoever runs them gives a fixture `harness`."""

    @pytest.fixture
    def stage(self, harness: Harness) -> Stage:
        return Stage(harness)
