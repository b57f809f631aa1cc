"""Sessions without a keeper: they send only the commands of the test."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from lockfast.conformance.drivers import PATIENCE_S, Driver
from lockfast.core import commands as c
from lockfast.core.checksum import checksum_of
from lockfast.ports import Store
from lockfast.runtimes.threads import run

R = TypeVar("R")
Send = Callable[[c.Command], Coroutine[Any, Any, c.Reply]]

LISTEN_MS = 100


def expect(reply: object, kind: type[R]) -> R:
    """Return the reply; fail unless it is of type `kind`."""
    assert isinstance(reply, kind), f"answered {reply!r}, not {kind.__name__}"
    return reply


class Caller:
    """One session on one connection, which tracks its claims as a client does."""

    def __init__(self, send: Send, session: str, ttl_ms: int, queue: bool = True) -> None:
        self.send = send
        self._queue = queue
        self.id = session
        self.opening = c.Open(session, ttl_ms, f"owner of {session}")
        self.account: dict[int, int] = {}
        """The token of each claim by number; 0 while the claim waits."""
        self._places: dict[int, tuple[c.Place, ...]] = {}

    def listening(self, listener: Listener) -> Caller:
        """Set the session's listener, before the session is opened."""
        self.opening = self.opening._replace(inbox=listener.inbox)
        return self

    async def open(self) -> c.Reply:
        return await self.send(self.opening)

    async def enter(self, n: int, *places: c.Place, **rest: Any) -> c.Reply:
        """Send `Enter`, which also opens the session if necessary."""
        self._places[n] = places
        command = c.Enter(self.id, n, places, queue=self._queue, open=self.opening)
        command = command._replace(**rest)
        reply = await self.send(command)
        self._note(n, reply)
        return reply

    async def hold(self, n: int, *places: c.Place, **rest: Any) -> c.Granted:
        """Send `Enter` and expect an immediate grant."""
        return expect(await self.enter(n, *places, **rest), c.Granted)

    async def queue(self, n: int, *places: c.Place, **rest: Any) -> c.Queued:
        """Send `Enter` and expect to be queued."""
        return expect(await self.enter(n, *places, queue=True, **rest), c.Queued)

    async def look(self, n: int) -> c.Reply:
        reply = await self.send(c.Look(self.id, n))
        self._note(n, reply)
        return reply

    async def holds(self, n: int) -> c.Granted:
        """Send `Look` and expect the claim to be granted."""
        return expect(await self.look(n), c.Granted)

    async def waits(self, n: int) -> c.Queued:
        """Send `Look` and expect the claim to wait."""
        return expect(await self.look(n), c.Queued)

    async def leave(self, n: int, close_ms: int = 0) -> c.Reply:
        self.account.pop(n, None)
        return await self.send(c.Leave(self.id, n, self._places.get(n, ()), close_ms))

    async def fill_log(self, entries: int, places: tuple[c.Place, ...]) -> None:
        """Write at least this many entries to the log, two per place and claim."""
        for n in range(1, entries // (2 * len(places)) + 2):
            await self.hold(n, *places)
            await self.leave(n)

    async def convert(self, n: int, step: int, mode: str, queue: bool = True) -> c.Reply:
        reply = await self.send(c.Convert(self.id, n, step, mode, queue))
        if isinstance(reply, c.Granted):
            self.account[n] = reply.token
        return reply

    async def renew(self, *waiting: int, lowest: int = 0) -> c.Reply:
        """Send a keep-alive with the correct count and checksum."""
        checksum = checksum_of(list(self.account.items()))
        reply = await self.send(
            c.Renew(self.id, len(self.account), checksum, lowest, tuple(waiting))
        )
        if isinstance(reply, c.Renewed):
            for n, look in reply.looks:
                self._note(n, look)
        return reply

    async def renewed(self, *waiting: int, lowest: int = 0) -> c.Renewed:
        return expect(await self.renew(*waiting, lowest=lowest), c.Renewed)

    async def claims(self) -> tuple[c.ClaimView, ...]:
        return expect(await self.send(c.Claims(self.id)), c.ClaimsReply).claims

    async def inspect(self, kind: str, name: str) -> c.ResourceView:
        return expect(await self.send(c.Inspect(kind, name)), c.ResourceView)

    def _note(self, n: int, reply: object) -> None:
        if isinstance(reply, c.Granted):
            self.account[n] = reply.token
        elif isinstance(reply, c.Queued):
            self.account.setdefault(n, 0)
        elif isinstance(reply, c.Gone):
            self.account.pop(n, None)


class Listener:
    """The listener of one session, and the wakes it has received."""

    def __init__(self, store: Store, session: str, driver: Driver, first_wake: str = "") -> None:
        self.heard: list[c.Wake] = []
        self._driver = driver
        self._listener = store.wake_listener(session, self._deliver)
        self.inbox = self._listener.inbox
        # Listen once first, as a keeper does: some listeners must subscribe, which may take
        # time. Interrupted beforehand, none waits longer than that.
        self._listener.interrupt()
        self.heard += run(self._listener.listen(round(PATIENCE_S * 1000)))
        if first_wake:
            run(self.hears(first_wake))

    def _deliver(self, wake: c.Wake) -> None:
        self.heard.append(wake)
        self._listener.interrupt()

    async def hears(self, what: str, n: int = 0) -> c.Wake:
        """Wait for the first wake of this kind for claim `n` and return it."""
        give_up_s = self._driver.now_s() + PATIENCE_S
        while True:
            for wake in self.heard:
                if wake.what == what and wake.n == n:
                    self.heard.remove(wake)
                    return wake
            assert self._driver.now_s() < give_up_s, f"no {what} of {n}, only {self.heard}"
            self.heard += await self._listener.listen(LISTEN_MS)

    def close(self) -> None:
        self._listener.close()
