"""The state behind a client: its store, its sessions, and requests outside any session."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Final, TypeVar

from lockfast.core.commands import READS, Command, Inspect, Reply, ResourceView
from lockfast.core.modes import LOCK
from lockfast.core.placement import session_id
from lockfast.errors import LimitError, OutcomeUnknownError, StoreError, StoreUnavailableError
from lockfast.flow.capabilities import checked_wire
from lockfast.flow.emitter import Emitter
from lockfast.flow.holding import Ask, Holding
from lockfast.flow.keeper import Keeper
from lockfast.flow.lock_order import LockOrder
from lockfast.flow.retry import RETRY_MS, Retry
from lockfast.flow.session import Session
from lockfast.ports import Runtime, Store, Wire, placement_of

SESSIONS_MAX: Final = 8
CLOSE_MS: Final = 3000

Reply_T = TypeVar("Reply_T")


@functools.cache
def ttl_step_ms(ttl_ms: int) -> int:
    """Round a TTL down to two significant digits, so that similar TTLs share a session."""
    step = 1
    while ttl_ms >= step * 100:
        step *= 10
    return ttl_ms // step * step


class Core:
    """The state of a client, shared by the blocking and the asyncio API."""

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
        self.placement = placement_of(store)
        self.runtime = runtime
        self.ttl_ms = ttl_ms
        self._owner_of = owner if callable(owner) else lambda: owner
        self.connect_timeout_ms = connect_timeout_ms
        self.ageing_step_ms = ageing_step_ms
        self._deadlock_after_ms = deadlock_after_ms
        self.lock_order: LockOrder | None = None
        can = store.capabilities
        self.contends = can.contend and not can.queue
        """An acquire that may wait does so by contending."""
        self.wire: Wire = checked_wire(store.caller_wire(), can)
        self._keeper_runtime = keeper_runtime
        self._metadata = metadata
        self.emitter = Emitter(runtime, store.label)
        self._start()

    def _start(self) -> None:
        """Initialize the state; called again in a forked child, because the inherited sessions,
        mutexes and actor names belong to the parent."""
        self._process = self.runtime.process()
        self._id = self.runtime.unique()[:8]
        self._owner = self._owner_of()
        self.emitter.start(self._owner)
        self._mutex = self.runtime.mutex()
        self._sessions: dict[tuple[int, int], Session] = {}
        """The sessions by TTL and shard."""
        self.closed = False
        self.refusal: Callable[[], BaseException] = self.closed_error

    @property
    def owner(self) -> str:
        """The label that other clients see; a forked child has its own."""
        if self._process != self.runtime.process():
            self._start()
        return self._owner

    def holding(self, ask: Ask) -> Holding:
        return Holding(ask, self.actor())

    def actor(self) -> str:
        """Return the id of the current task or thread, unique across all clients."""
        if self._process != self.runtime.process():
            self._start()
        return f"{self._id}/{self.runtime.actor()}"

    def enlist(self, holding: Holding) -> Session:
        """Register a claim in the session for its TTL, creating the session if necessary.

        Raises UnsupportedError if the claim names locks on different shards.
        """
        shard = 0 if self.placement is None else self.placement.shard_of(holding.ask.places)
        while not (session := self.session(holding.ask.ttl_ms, shard)).register(holding):
            pass  # the session has just ended; session() creates another
        return session

    def session(self, ttl_ms: int | None = None, shard: int = 0) -> Session:
        """Return the live session for this TTL in this shard, with its keeper running."""
        step_ms = ttl_step_ms(ttl_ms or self.ttl_ms)
        if self._process != self.runtime.process():
            self._start()
        found = self._sessions.get((step_ms, shard))
        if found is not None and found.alive() and not found.closing:
            return found
        with self._mutex:
            if self.closed:
                raise self.refusal()
            found = self._sessions.get((step_ms, shard))
            if found is not None and found.alive() and not found.closing:
                return found
            if found is None:
                step_ms = self._within_bounds(step_ms, shard)
            session = self._sessions.get((step_ms, shard))
            if session is not None and session.alive() and not session.closing:
                return session
            session = self._new_session(step_ms, shard)
            try:
                session.attach(self.store)
                keeper = Keeper(session, self.store.keeper_wire())
                self._keeper_runtime.spawn(keeper.run, f"lockfast-{session.id}")
                self._sessions[step_ms, shard] = session
            except BaseException:
                # Interrupted by Ctrl-C, or the keeper's thread could not be started.
                session.keeper_not_started()
                raise
            return session

    def _new_session(self, step_ms: int, shard: int) -> Session:
        session = Session(self._keeper_runtime, step_ms, self.owner, self._metadata)
        if self.placement is None:
            session.id = session_id(self._id, session.id)
        else:
            session.id = self.placement.session_id(self._id, session.id, shard)
        session.deadlock_after_ms = self._deadlock_after_ms
        session.siblings = self.sessions
        session.emitter = self.emitter
        return session

    def closed_error(self) -> BaseException:
        """Return the error for calls on a closed client."""
        return StoreUnavailableError(self.store.label, "the client is closed", "connect again")

    def _within_bounds(self, step_ms: int, shard: int) -> int:
        """Return the TTL, or a shorter one in use if the client has too many sessions."""
        for used in [used for used, session in self._sessions.items() if not session.alive()]:
            del self._sessions[used]
        steps_ms = [used_ms for used_ms, used_shard in self._sessions if used_shard == shard]
        if len(steps_ms) < SESSIONS_MAX:
            return step_ms
        shorter = [used_ms for used_ms in steps_ms if used_ms < step_ms]
        if not shorter:
            raise LimitError(
                "the number of different TTLs of this client",
                len(steps_ms) + 1,
                SESSIONS_MAX,
                "reuse one of its TTLs",
            )
        return max(shorter)

    async def request(
        self,
        command: Command,
        timeout_ms: int | None = None,
        *,
        wire: Wire | None = None,
        runtime: Runtime | None = None,
    ) -> Reply:
        """Send a command that is safe to repeat, and retry it until the timeout.

        It goes out on the wire of API calls, unless another one and its runtime are given.
        """
        wire, runtime = wire or self.wire, runtime or self.runtime
        is_in_doubt = False
        retry = Retry(runtime, runtime.now_ms() + (timeout_ms or self.connect_timeout_ms))
        while True:
            try:
                left_ms = retry.left_ms(runtime.now_ms())
                # If the command or its reply is lost, resend before a long timeout elapses.
                reply = await wire.send(command, min(left_ms, self.connect_timeout_ms))
                if self.emitter.outage.failures:
                    self.emitter.outage.ended()
                return reply
            except (StoreUnavailableError, OutcomeUnknownError) as error:
                is_in_doubt |= isinstance(error, OutcomeUnknownError) and type(command) not in READS
                trouble = error if self.closed else retry.failed(error)
                if not self.closed:
                    self.emitter.outage.failed(error, raised=trouble is not None)
                if trouble is not None:
                    if is_in_doubt:
                        # An earlier attempt may have been executed, whatever became of this one.
                        trouble = OutcomeUnknownError(trouble.store, trouble.what, trouble.advice)
                    raise trouble from error.__cause__
                await runtime.signal().wait(RETRY_MS)

    async def ask(self, command: Command, kind: type[Reply_T]) -> Reply_T:
        """Send a request and raise StoreError unless the reply is of type `kind`."""
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
        """Release everything and stop the keepers. A claim whose release fails expires."""
        if self._process != self.runtime.process():
            return
        if self.closed:
            return
        self.closed = True
        sessions = self.sessions()
        until_ms = self.runtime.now_ms() + timeout_ms
        try:
            for session in sessions:
                stopped = self.runtime.signal()
                if session.close(stopped.set):
                    await stopped.wait(max(0, until_ms - self.runtime.now_ms()))
        finally:
            # Also on cancellation: keepers that are still busy then give up.
            self.wire.close()
            self.store.close()


PING: Final = Inspect(LOCK, "lockfast-ping", 1)


async def ping(core: Core) -> float:
    """Wait for a reply of the store; return how many seconds it took."""
    began_ms = core.runtime.now_ms()
    await core.ask(PING, ResourceView)
    return (core.runtime.now_ms() - began_ms) / 1000


async def check_store(core: Core, keeper_runtime: Runtime) -> None:
    """Wait for a reply on the keeper's kind of wire, which blocks in both APIs."""
    wire = core.store.keeper_wire()
    try:
        await core.request(PING, wire=wire, runtime=keeper_runtime)
    finally:
        wire.close()
