"""A simulated client: the shipped flow code, and a record of what it requested and received."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

from lockfast.core.commands import (
    Command,
    Enter,
    Granted,
    Place,
    Queued,
    Renew,
    Renewed,
    Reply,
    Revoke,
    RevokeSession,
)
from lockfast.errors import (
    AcquireTimeoutError,
    DeadlockError,
    LeaseLostError,
    LimitError,
    LockfastError,
    OutcomeUnknownError,
)
from lockfast.flow import acquire as claims
from lockfast.flow.client import Core
from lockfast.flow.convert import convert
from lockfast.flow.holding import Ask, Holding, LeaseState
from lockfast.flow.retained import RetainedLock, Use
from lockfast.sim.runtime import MS, Cancelled, Host

if TYPE_CHECKING:
    from lockfast.sim.world import World

DEADLOCK_AFTER_MS = 150
"""Short, so that a schedule contains several."""

KEEP_ALIVES_MAX: Final = 40
"""How many keep-alives of a session may succeed within a TTL. Three are regular; a claim ahead
that should have expired causes more, with growing pauses."""

_RELIED_ON: Final = (LeaseState.HELD, LeaseState.UNCERTAIN)
_STANDS: Final[dict[type, str]] = {Queued: "queued", Granted: "entered"}
"""Return what the reply to an `Enter` says about the state of the claim."""


class SimLease:
    """A held lock, and the operation that acquired it."""

    __slots__ = ("client", "granted_at", "holding", "is_over", "op", "places")

    def __init__(self, client: SimClient, op: int, holding: Holding, places: Sequence[Place]):
        self.client = client
        self.op = op
        self.holding = holding
        self.places = places
        self.is_over = False
        self.granted_at = client.host.kernel.now

    @property
    def token(self) -> int:
        return self.holding.token

    @property
    def name(self) -> str:
        return self.places[0].name

    @property
    def mode(self) -> str:
        return self.holding.mode

    def held(self) -> bool:
        """Return True if the holder may rely on the lease now, by its own clock."""
        session = self.holding.session
        assert session is not None
        return session.state_of(self.holding) in _RELIED_ON

    def over(self, why: str) -> None:
        """Record that the holder no longer relies on the lease."""
        if self.is_over or self.client.host.dead:
            return
        self.is_over = True
        self.client.leases.pop(self.op, None)
        client = self.client
        session = self.holding.session
        assert session is not None
        deadline = client.host.clock.tick_when(session.deadline_of(self.holding) * MS)
        at = client.host.kernel.now
        if deadline < at:
            at, why = max(deadline, self.granted_at), "deadline"
        client.history.got(at, self.op, "over", why=why)


class SimClient:
    """One process that acquires locks."""

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.name = name
        self.host: Host = world.host(name)
        self.history = world.history
        self.leases: dict[int, SimLease] = {}
        self._asking: dict[int, Holding | None] = {}
        """Operations without a reply yet, with their claims."""
        self._keep_alives = Counter[tuple[str, int]]()
        """By session and TTL since the beginning."""
        self.core: Core
        self.connect()

    def connect(self) -> None:
        world = self.world
        self.core = Core(
            world.service.connect(self.host, self._sends, self._saw),
            self.host,
            self.host,
            ttl_ms=world.ttl_ms,
            owner=self.name,
            connect_timeout_ms=world.ttl_ms,
            ageing_step_ms=world.ageing_step_ms,
            deadlock_after_ms=DEADLOCK_AFTER_MS,
        )

    async def acquire(
        self,
        *places: Place,
        timeout_ms: int | None = None,
        priority: int = 0,
        max_hold_ms: int = 0,
        value: str | None = None,
        ttl_ms: int = 0,
        window_ms: int = 0,
    ) -> SimLease | None:
        """Acquire a lock and record it. Return None if it was not granted."""
        host, history = self.host, self.history
        head_start_ms = priority * self.core.ageing_step_ms
        op = history.ask(
            host.kernel.now,
            self.name,
            "acquire",
            places=places,
            wait=timeout_ms != 0,
            timeout=timeout_ms,
            head_start=head_start_ms,
            **({"window": window_ms, "closes": True} if window_ms else {}),
        )
        ask = Ask(
            places,
            ttl_ms or self.core.ttl_ms,
            priority,
            head_start_ms,
            max_hold_ms,
            value=value,
            window_ms=window_ms,
        )
        holding = self.core.holding(ask)
        self._asking[op] = holding
        try:
            held = await claims.acquire(self.core, holding, timeout_ms)
        except AcquireTimeoutError:
            history.got(host.kernel.now, op, "timeout")
            return None
        except LimitError:
            history.got(host.kernel.now, op, "refused")
            return None
        except DeadlockError:
            history.got(host.kernel.now, op, "deadlock")
            return None
        except LockfastError as error:
            history.got(host.kernel.now, op, "unknown", why=type(error).__name__)
            return None
        except Cancelled:
            history.got(host.kernel.now, op, "unknown", why="cancelled")
            raise
        finally:
            self._asking.pop(op, None)
        if not held:
            history.got(host.kernel.now, op, "busy")
            return None
        session = holding.session
        assert session is not None
        history.got(
            host.kernel.now, op, "granted", token=holding.token, session=session.id, n=holding.n
        )
        lease = SimLease(self, op, holding, places)
        self.leases[op] = lease
        if lease.held():
            holding.on_end += (partial(self._lost, op),)
        else:
            lease.over("lost")
        return lease

    async def acquire_retained(
        self, lock: RetainedLock, place: Place
    ) -> tuple[SimLease, Use] | None:
        """Become a local user of a lock that this client retains."""
        host, history = self.host, self.history
        op = history.ask(
            host.kernel.now,
            self.name,
            "acquire",
            places=(place,),
            wait=True,
            timeout=None,
            retained=True,
        )
        self._asking[op] = None
        try:
            use = await lock.acquire(None)
        except LockfastError as error:
            history.got(host.kernel.now, op, "unknown", why=type(error).__name__)
            return None
        finally:
            self._asking.pop(op, None)
        assert use.holding is not None
        session = use.holding.session
        assert session is not None
        n = use.holding.n
        history.got(host.kernel.now, op, "granted", token=use.token, session=session.id, n=n)
        lease = SimLease(self, op, use.holding, (place,))
        self.leases[op] = lease
        use.holding.on_end += (partial(self._lost, op),)
        return lease, use

    async def release_retained(self, lock: RetainedLock, lease: SimLease, use: Use) -> None:
        lease.over("released")
        op = self.history.ask(self.host.kernel.now, self.name, "release", of=lease.op)
        try:
            await lock.release(use)
        except LeaseLostError:
            self.history.got(self.host.kernel.now, op, "lost")
        else:
            self.history.got(self.host.kernel.now, op, "done")

    async def convert(self, lease: SimLease, mode: str, timeout_ms: int | None = None) -> str:
        """Convert a lease. Return the outcome."""
        host, history = self.host, self.history
        wait = timeout_ms != 0
        op = history.ask(host.kernel.now, self.name, "convert", of=lease.op, mode=mode, wait=wait)
        try:
            await convert(self.core, lease.holding, mode, timeout_ms)
        except LeaseLostError:
            lease.over("lost")
            outcome = "lost"
        except DeadlockError:
            outcome = "deadlock"
        except AcquireTimeoutError:
            outcome = "timeout"
        except LockfastError:
            outcome = "unknown"
        else:
            history.got(host.kernel.now, op, "granted", token=lease.token)
            return "granted"
        history.got(host.kernel.now, op, outcome)
        return outcome

    async def release(self, lease: SimLease) -> str:
        """Release the lease. Return the outcome."""
        host, history = self.host, self.history
        lease.over("released")
        op = history.ask(host.kernel.now, self.name, "release", of=lease.op)
        try:
            await claims.release(self.core, lease.holding)
        except LeaseLostError:
            outcome = "lost"
        except OutcomeUnknownError:
            outcome = "unknown"
        except Cancelled:
            history.got(host.kernel.now, op, "unknown", why="cancelled")
            raise
        else:
            outcome = "done"
        history.got(host.kernel.now, op, outcome)
        return outcome

    def disband(self) -> None:
        """Break the reference cycles of this client."""
        self.leases.clear()
        del self.core

    def _lost(self, op: int) -> None:
        """Record that a claim has ended, unless its lease had ended before."""
        lease = self.leases.get(op)
        if lease is not None:
            lease.over("lost")

    def die(self) -> None:
        """Record that the process was killed: it has no further effect."""
        for lease in list(self.leases.values()):
            lease.over("crashed")
        self.leases.clear()
        for op in self._asking:
            self.history.got(self.host.kernel.now, op, "unknown", why="crashed")
        self._asking.clear()
        self.host.crash()

    def _sends(self, command: Command) -> None:
        """Record what the command may revoke, before it can be executed."""
        if isinstance(command, Revoke | RevokeSession):
            self.world.note_revoke(command)

    def _saw(self, command: Command, reply: Reply) -> None:
        """Record when a claim is known to be queued."""
        if type(command) is Enter:
            what = _STANDS.get(type(reply))
            if what is None:
                return
            for op, holding in self._asking.items():
                if holding is None or holding.n != command.n:
                    continue
                if holding.session is not None and holding.session.id == command.session:
                    self.history.got(self.host.kernel.now, op, what)
                    return
        elif type(command) is Renew and type(reply) is Renewed:
            self._count_keep_alive(command.session)
            self.host.kernel.soon(partial(self._check_deadline, command.session))

    def _count_keep_alive(self, session_id: str) -> None:
        world = self.world
        period = session_id, self.host.kernel.now // (world.ttl_ms * MS)
        self._keep_alives[period] += 1
        if self._keep_alives[period] == KEEP_ALIVES_MAX:
            text = f"{self.name} sent {KEEP_ALIVES_MAX} keep-alives for session {session_id}"
            world.problem("busy", f"{text} within {world.ttl_ms} ms")

    def _check_deadline(self, session_id: str) -> None:
        """Check that no client relies on a session for longer than the store does."""
        if self.world.forgets:
            return  # the store may have lost this keep-alive
        theirs = self.world.service.session_ends_us(session_id)
        for session in self.core.sessions():
            if session.id != session_id or session.snapshot.ended or theirs is None:
                continue
            ours = self.host.clock.tick_when(session.snapshot.deadline_ms * MS)
            if ours > theirs:
                self.world.problem(
                    "told",
                    f"{self.name} believes in session {session_id} until {ours}, "
                    f"the store ends it at {theirs}",
                )
