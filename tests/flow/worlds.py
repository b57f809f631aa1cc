"""A session, its keeper and a scripted store in virtual time, without threads.

The clock moves only while the keeper listens, by as long as it asks for, or when a test moves it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from lockfast.core.commands import (
    Blocker,
    Claims,
    ClaimsReply,
    Command,
    Done,
    Granted,
    Place,
    Queued,
    Renew,
    Renewed,
    Reply,
    Wake,
)
from lockfast.flow.holding import Ask, Holding
from lockfast.flow.keeper import Keeper
from lockfast.flow.session import Session
from lockfast.runtimes.threads import ThreadSignal, ThreadsRuntime, run

TTL_MS = 30_000
EMPTY_WAITS_MAX = 100
BLOCKER = Blocker("s-1", 1, "host", "pid 7", 0, True, 17, 0)


class Clock(ThreadsRuntime):
    """A runtime whose clock stands still between waits."""

    at_ms = 1000

    def now_ms(self) -> int:
        return self.at_ms

    def now_us(self) -> int:
        return self.at_ms * 1000

    def random(self) -> float:
        return 0.5

    def signal(self) -> ThreadSignal:
        return _Signal(self)


class _Signal(ThreadSignal):
    __slots__ = ("_clock",)

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self._clock = clock

    async def wait(self, timeout_ms: int | None) -> bool:
        if not self.is_set():
            assert timeout_ms is not None, "it would wait for ever"
            self._clock.at_ms += timeout_ms
        return self.is_set()


class Listener:
    """Passes the time that the keeper is idle; a test plans what happens at which instant."""

    inbox = process = ""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._plan: list[tuple[int, Callable[[], Sequence[Wake]]]] = []
        self._empty_waits = self._waited_until_ms = 0
        self.watched: dict[int, Sequence[Blocker]] = {}

    def at(self, at_ms: int, job: Callable[[], object]) -> None:
        """Run `job` at an instant; if it returns a wake, the keeper hears it."""

        def run_job() -> Sequence[Wake]:
            found = job()
            return (found,) if isinstance(found, Wake) else ()

        self._plan.append((at_ms, run_job))
        self._plan.sort(key=lambda item: item[0])

    async def listen(self, timeout_ms: int | None) -> Sequence[Wake]:
        due_ms = None if timeout_ms is None else self._clock.at_ms + timeout_ms
        if self._plan and (due_ms is None or self._plan[0][0] <= due_ms):
            at_ms, job = self._plan.pop(0)
            self._clock.at_ms = max(self._clock.at_ms, at_ms)
            return job()
        assert due_ms is not None, "the keeper would wait for ever"
        self._empty_waits = self._empty_waits + 1 if due_ms == self._waited_until_ms else 0
        self._waited_until_ms = due_ms
        if self._empty_waits > EMPTY_WAITS_MAX:
            pytest.fail("the keeper waits actively")  # not an Exception, which it would handle
        self._clock.at_ms = due_ms
        return ()

    def interrupt(self) -> None: ...

    def watch_over(self, n: int, blockers: Sequence[Blocker]) -> None:
        self.watched[n] = blockers

    def dead(self, blockers: Sequence[Blocker]) -> Sequence[str]:
        return ()

    def close(self) -> None: ...


class ScriptedWire:
    """Records every command with its instant and timeout, and answers as a test says."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.sent: list[tuple[int, Command, int]] = []
        self.answer: Callable[[Command], Reply | Exception | None] = lambda command: None
        """None for the usual reply."""
        self.connections = 1
        self.closed = False

    async def send(self, command: Command, timeout_ms: int) -> Reply:
        self.sent.append((self._clock.at_ms, command, timeout_ms))
        reply = self.answer(command)
        if isinstance(reply, Exception):
            raise reply
        if reply is not None:
            return reply
        if isinstance(command, Renew):
            return Renewed(True)
        return ClaimsReply(()) if isinstance(command, Claims) else Done()

    def close(self) -> None:
        self.closed = True

    def times(self, kind: type) -> list[int]:
        """Return when commands of this type were sent."""
        return [at_ms for at_ms, command, _ in self.sent if isinstance(command, kind)]

    def commands(self, *but: type) -> list[Command]:
        """Return what was sent, without commands of these types."""
        return [command for _, command, _ in self.sent if not isinstance(command, but)]


class World:
    """One open session, and a keeper to run."""

    def __init__(self, ttl_ms: int = TTL_MS) -> None:
        self.clock = Clock()
        self.session = Session(self.clock, ttl_ms, "owner", "")
        self.listener = Listener(self.clock)
        self.session.listener = self.listener
        self.wire = ScriptedWire(self.clock)
        self.keeper = Keeper(self.session, self.wire)
        assert self.session.opening() is not None
        self.session.opened()

    def keep(self, until_ms: int) -> None:
        """Run the keeper; the client is closed at this instant."""
        self.listener.at(until_ms, self.session.close)
        run(self.keeper.run())

    def entering(self, name: str = "a", actor: str = "x", max_hold_ms: int = 0) -> Holding:
        place = Place("lock", name, "exclusive")
        holding = Holding(Ask((place,), self.session.ttl_ms, max_hold_ms=max_hold_ms), actor)
        assert self.session.register(holding)
        return holding

    def waiting(self, name: str = "a", actor: str = "x", look_ms: int = 5000) -> Holding:
        holding = self.entering(name, actor)
        self.session.queued(holding, Queued((BLOCKER,), look_ms))
        return holding

    def held(self, name: str = "a", actor: str = "x", max_hold_ms: int = 0) -> Holding:
        holding = self.entering(name, actor, max_hold_ms)
        self.session.granted(holding, Granted(17), self.clock.at_ms)
        return holding
