"""A client: its store, its sessions, and the requests that need neither."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Final, TypeVar

from lockfast.core.commands import Command, Reply
from lockfast.errors import LimitError, OutcomeUnknownError, StoreError, StoreUnavailableError
from lockfast.flow.capabilities import checked_wire
from lockfast.flow.holding import Ask, Holding
from lockfast.flow.keeper import Keeper
from lockfast.flow.lock_order import LockOrder
from lockfast.flow.retry import RETRY_MS, Retry
from lockfast.flow.session import Session
from lockfast.ports import Runtime, Store, Wire

SESSIONS_MAX: Final = 8
CLOSE_MS: Final = 3000

Reply_T = TypeVar("Reply_T")


@functools.cache
def ttl_step_ms(ttl_ms: int) -> int:
    """A TTL rounded down to two digits, so that nearly equal ones share a session."""
    step = 1
    while ttl_ms >= step * 100:
        step *= 10
    return ttl_ms // step * step


class Core:
    """What both faces of a client share."""

    def __init__(
        self,
        store: Store,
        runtime: Runtime,
        keeper_runtime: Runtime,
        *,
        ttl_ms: int,
        owner: str | Callable[[], str],
        metadata: str = "",
        connect_timeout_ms: int = 5000,
        ageing_step_ms: int = 10_000,
        deadlock_after_ms: int = 1000,
    ) -> None:
        self.store = store
        self.runtime = runtime
        self.ttl_ms = ttl_ms
        self._owner_of = owner if callable(owner) else lambda: owner
        self.connect_timeout_ms = connect_timeout_ms
        self.ageing_step_ms = ageing_step_ms
        self._deadlock_after_ms = deadlock_after_ms
        self.lock_order: LockOrder | None = None
        self.wire: Wire = checked_wire(store.caller_wire(), store.capabilities)
        self._keeper_runtime = keeper_runtime
        self._metadata = metadata
        self._start()

    def _start(self) -> None:
        """Begin with nothing; once more after a fork, for what a child inherits belongs to
        its parent, down to the mutexes and the names of actors."""
        self._process = self.runtime.process()
        self._id = self.runtime.unique()[:8]
        self._owner = self._owner_of()
        self._mutex = self.runtime.mutex()
        self._sessions: dict[int, Session] = {}
        self.closed = False
        self.refusal: Callable[[], BaseException] = self.closed_error

    @property
    def owner(self) -> str:
        """The label that others see, of this process and not of the one it was forked off."""
        if self._process != self.runtime.process():
            self._start()
        return self._owner

    def holding(self, ask: Ask) -> Holding:
        return Holding(ask, self.actor())

    def actor(self) -> str:
        """Who is running now, told apart from the actors of every other client."""
        if self._process != self.runtime.process():
            self._start()
        return f"{self._id}/{self.runtime.actor()}"

    def enlist(self, holding: Holding) -> Session:
        """Register a claim in the session of its TTL, opening one if need be."""
        while not (session := self.session(holding.ask.ttl_ms)).register(holding):
            pass  # it ended just now: the next is another
        return session

    def session(self, ttl_ms: int | None = None) -> Session:
        """The session that lives for this TTL; its keeper is at work."""
        step_ms = ttl_step_ms(ttl_ms or self.ttl_ms)
        if self._process != self.runtime.process():
            self._start()
        found = self._sessions.get(step_ms)
        if found is not None and found.alive() and not found.closing:
            return found
        with self._mutex:
            if self.closed:
                raise self.refusal()
            found = self._sessions.get(step_ms)
            if found is not None and found.alive() and not found.closing:
                return found
            if found is None:
                step_ms = self._within_bounds(step_ms)
            session = self._sessions.get(step_ms)
            if session is not None and session.alive() and not session.closing:
                return session
            session = Session(self._keeper_runtime, step_ms, self.owner, self._metadata)
            session.deadlock_after_ms = self._deadlock_after_ms
            session.siblings = self.sessions
            try:
                session.attach(self.store)
                keeper = Keeper(session, self.store.keeper_wire())
                self._keeper_runtime.spawn(keeper.run, f"lockfast-{session.id}")
                self._sessions[step_ms] = session
            except BaseException:
                # Interrupted (Ctrl-C), or there is no thread to be had.
                session.forsake()
                raise
            return session

    def closed_error(self) -> BaseException:
        """What whoever still wants something of a closed client is told."""
        return StoreUnavailableError(self.store.label, "the client is closed", "connect again")

    def _within_bounds(self, step_ms: int) -> int:
        """The TTL itself, or a shorter one already in use once there are too many."""
        for used in [used for used, session in self._sessions.items() if not session.alive()]:
            del self._sessions[used]
        if len(self._sessions) < SESSIONS_MAX:
            return step_ms
        shorter = [used for used in self._sessions if used < step_ms]
        if not shorter:
            raise LimitError(
                "the number of different TTLs of this client",
                len(self._sessions) + 1,
                SESSIONS_MAX,
                "use one of those in use",
            )
        return max(shorter)

    async def request(self, command: Command, timeout_ms: int | None = None) -> Reply:
        """Send a command that is safe to repeat, trying again while there is time."""
        runtime = self.runtime
        retry = Retry(runtime, runtime.now_ms() + (timeout_ms or self.connect_timeout_ms))
        while True:
            try:
                return await self.wire.send(command, retry.left_ms(runtime.now_ms()))
            except (StoreUnavailableError, OutcomeUnknownError) as error:
                trouble = error if self.closed else retry.failed(error)
                if trouble is not None:
                    raise trouble from error.__cause__
                await runtime.signal().wait(RETRY_MS)

    async def ask(self, command: Command, kind: type[Reply_T]) -> Reply_T:
        """`request`, for commands that have one kind of answer."""
        reply = await self.request(command)
        if not isinstance(reply, kind):
            raise StoreError(self.store.label, f"answered {reply!r} to {type(command).__name__}")
        return reply

    def sessions(self) -> list[Session]:
        """The sessions of this process."""
        if self._process != self.runtime.process():
            return []
        with self._mutex:
            return list(self._sessions.values())

    async def close(self, timeout_ms: int = CLOSE_MS) -> None:
        """Give everything back and stop; what the store does not answer ends by its TTL."""
        if self._process != self.runtime.process():
            return
        if self.closed:
            return
        self.closed = True
        sessions = self.sessions()
        until_ms = self.runtime.now_ms() + timeout_ms
        try:
            for session in sessions:
                gone = self.runtime.signal()
                if session.close(gone.set):
                    await gone.wait(max(0, until_ms - self.runtime.now_ms()))
        finally:
            # Also if we are cancelled: keepers that are not done give up then.
            self.wire.close()
            self.store.close()
