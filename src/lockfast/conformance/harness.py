"""The harness that a store's author provides, and the stage that each test runs on."""

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
MANY = 25
"""The number of places in claims that fill the log, if the store allows as many."""
SEVERAL_USED = 4
"""The largest number of places in a claim of the stories about several."""


class Harness:
    """One store with one API, in a namespace that was never used before.

    `log_kept` is the minimum number of log entries that the store keeps; the suite writes
    more, to check that the oldest are dropped. `first_wake` is what a listener reports once it has
    subscribed to a server, which may take time. Set `keeps_process` to False if the
    store does not accept the process that a client names. Override `pass_ms` if the test can set
    the store's clock; the suite then hardly takes any time.
    """

    keeps_process = True
    first_wake = ""

    def __init__(
        self,
        url: str,
        face: str,
        capabilities: Capabilities,
        *,
        log_kept: int = 10_000,
        first_wake: str = "",
    ) -> None:
        self.url = url
        self.first_wake = first_wake
        self.capabilities = capabilities
        self.log_kept = log_kept
        self.driver: Driver = DRIVERS[face]()
        self._face = face

    def store(self) -> Store:
        """Open the store for callers of this API."""
        return open_store(self.url, "threads" if self._face == "threads" else "asyncio")

    def client(self, **settings: Any) -> Client:
        """Create a client of this API."""
        return self.driver.connect(self.url, **settings)

    async def pass_ms(self, span_ms: int) -> None:
        """Advance the store's clock by at least this much, or wait until it has advanced."""
        await self.driver.pause((span_ms + 1) / 1000)

    def together(self, *names: str) -> tuple[str, ...]:
        """Return names like these that one claim may request at once.

        Override it for a store of several shards: the names must lie in one.
        """
        return names

    def many_together(self) -> tuple[str, ...]:
        """Return as many names as one claim may request at once, but at most MANY."""
        return self.together(*(f"n{i:02}" for i in range(min(MANY, self.capabilities.several))))

    def session_for(self, session: str, name: str) -> str:
        """Return an id like `session` for a session that claims `name`.

        Override it for a store of several shards, where a session lives in one of them.
        """
        return session


class Stage:
    """The clients, sessions and jobs of one test."""

    def __init__(self, harness: Harness) -> None:
        self.harness = harness
        self.can = harness.capabilities
        self._driver = harness.driver
        self._clients: list[Client] = []
        self._stores: list[Store] = []
        self._heard_by: dict[str, Store] = {}
        """The store objects of sessions with a listener. As in a client, it also sends for them."""
        self._listeners: list[Listener] = []
        self._running: list[Running[Any]] = []
        self._kept: list[object] = []

    def play(self, story: Coroutine[Any, Any, None], needs: tuple[str, ...]) -> None:
        """Run a test. If it needs an undeclared capability, expect UnsupportedError."""

        refused: list[UnsupportedError] = []

        async def told() -> None:
            try:
                await story
            except UnsupportedError as error:
                # Keeping the error keeps the test's leases alive until `close` releases them.
                refused.append(error)
            finally:
                await self._close()

        self._driver.run(told())
        lacking = [need for need in needs if not self._declared(need)]
        if lacking:
            assert refused, f"the store does not declare {lacking}, but raised no UnsupportedError"
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
                pass  # the test itself checks results; here the job only has to end
        for listener in self._listeners:
            listener.close()
        for store in self._stores:
            store.close()

    # ── at the wire ──────────────────────────────────────────────────────────────────

    def sender(self, session: str = "") -> Callable[[Command], Coroutine[Any, Any, Reply]]:
        """Open a new connection for commands, by the store object that listens for the session."""
        store = self._heard_by.get(session) or self._store()
        wire = checked_wire(store.caller_wire(), store.capabilities)

        async def send(command: Command) -> Reply:
            return await wire.send(command, SEND_MS)

        return send

    def callers(self, *sessions: str, ttl_ms: int = 30_000) -> list[Caller]:
        """Create sessions without a keeper, each on its own connection."""
        return [
            Caller(self.sender(session), session, ttl_ms, self.can.queue) for session in sessions
        ]

    def _store(self) -> Store:
        self._stores.append(self.harness.store())
        return self._stores[-1]

    def listener(self, session: str) -> Listener:
        """Create the listener of a session without a keeper, before its caller."""
        store = self._heard_by[session] = self._store()
        listener = Listener(store, session, self._driver, self.harness.first_wake)
        self._listeners.append(listener)
        return listener

    async def pass_ms(self, span_ms: int) -> None:
        """Advance the store's clock by at least this much, or wait until it has advanced."""
        await self.harness.pass_ms(span_ms)

    # ── through clients ──────────────────────────────────────────────────────────────

    def client(self, **settings: Any) -> Client:
        client = self.harness.client(**settings)
        self._clients.append(client)
        return client

    def clients(self, count: int, **settings: Any) -> list[Client]:
        return [self.client(**settings) for _ in range(count)]

    def keep(self, lease: T) -> T:
        """Keep a lease alive until the end of the test, where closing the client releases it."""
        self._kept.append(lease)
        return lease

    def start(self, job: Coroutine[Any, Any, T]) -> Running[T]:
        """Run a job concurrently with the test, in a thread or a task."""
        running = self._driver.start(job)
        self._running.append(running)
        return running

    async def interrupt(
        self, job: Coroutine[Any, Any, object], once: Callable[[], Coroutine[Any, Any, object]]
    ) -> None:
        """Interrupt a thread by Ctrl-C, or cancel a task, as soon as `once` returns."""
        await self._driver.interrupt(job, once)

    async def until(self, condition: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Poll `condition` until it returns a true value, and return that."""
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
        """Wait until `count` claims wait for a lock."""

        async def waiting() -> bool:
            return (await client.inspect(name)).waiting_count == count

        await self.until(waiting)


def story(
    *needs: str,
) -> Callable[
    [Callable[Concatenate[Any, Stage, P], Coroutine[Any, Any, None]]],
    Callable[Concatenate[Any, Stage, P], None],
]:
    """Turn an `async def` into a test; `needs` names the capabilities that it requires."""

    def decorate(
        tell: Callable[Concatenate[Any, Stage, P], Coroutine[Any, Any, None]],
    ) -> Callable[Concatenate[Any, Stage, P], None]:
        @functools.wraps(tell)
        def test(self: Any, stage: Stage, *args: P.args, **kwargs: P.kwargs) -> None:
            stage.play(tell(self, stage, *args, **kwargs), needs)

        return test  # type: ignore[return-value]  # Callable cannot express parameter names

    return decorate


class Contract:
    """A group of tests. Subclasses need a fixture `harness`."""

    @pytest.fixture
    def stage(self, harness: Harness) -> Stage:
        return Stage(harness)
