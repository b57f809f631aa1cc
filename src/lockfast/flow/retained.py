"""Retained locks: a client keeps the grant after a release, for its next local user.

The client takes the grant from the store once, with a block of tokens. Its local users then
follow each other without a request to the store, each with the next token of the block. When
other clients wait for the lock, the store wakes this one, and it releases the grant: at once
if nobody here uses it; otherwise after the current users and those already in the local queue
have had their turn, but at most SERVED_WHILE_WANTED of them within SERVED_MS_WHILE_WANTED.
"""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, Final

from lockfast.core.commands import Granted, Look
from lockfast.core.modes import EXCLUSIVE
from lockfast.errors import AcquireTimeoutError, DeadlockError, LeaseLostError, LockfastError
from lockfast.flow import acquire as claims
from lockfast.flow.effects import carry_out, without
from lockfast.flow.holding import Ask, Holding, LeaseState, Phase
from lockfast.flow.log import logger

if TYPE_CHECKING:
    from lockfast.flow.client import Core
    from lockfast.flow.observed import ObservedUse
    from lockfast.ports import Signal

BLOCK: Final = 4096
"""Tokens that come with a grant. After the last one the client acquires the lock again."""
SERVED_WHILE_WANTED: Final = 32
"""How many queued local users are still admitted while other clients wait for the lock."""
SERVED_MS_WHILE_WANTED: Final = 20
"""How long queued local users are still admitted while other clients wait for the lock."""
LOOK_AFTER_USES: Final = 32
"""If other clients were already waiting at the previous grant, ask the store after this many
uses whether others wait now, and again each time the number of uses has doubled."""
LOOK_MS_MAX: Final = 1000
"""How long that request may delay the caller's release. The keeper asks as well."""


class Use:
    """One local user of a retained lock.

    Created before it is admitted, so that an interrupted caller has something to release.
    """

    __slots__ = ("actor", "ended", "holding", "observed", "on_end", "token", "waited")

    def __init__(self, actor: str) -> None:
        self.actor = actor
        self.holding: Holding | None = None
        """The grant that it uses; None until it is admitted."""
        self.token = 0
        self.waited = False
        """It had to wait for other users, here or elsewhere."""
        self.observed: ObservedUse | None = None
        """What to report when it ends; None if nobody observes, or its end was reported."""
        self.ended = False
        """It has released the lock or stopped waiting for it."""
        self.on_end: tuple[Callable[[], None], ...] = ()
        """Called when it loses or releases the lock."""


class _Waiter:
    __slots__ = ("arrival", "lead", "signal", "use")

    def __init__(self, use: Use, arrival: int, signal: Signal) -> None:
        self.use = use
        self.arrival = arrival
        self.signal = signal
        self.lead = False
        """This waiter must acquire the lock from the store."""


class RetainedLock:
    """One lock retained by one client: the grant, its users, and their local queue."""

    def __init__(self, core: Core, ask: Ask, block: int = BLOCK) -> None:
        self._core = core
        self._ask = ask._replace(block=block)
        self._shared = ask.places[0].mode != EXCLUSIVE
        self.nothing = Holding(self._ask, "")
        """The placeholder that a lease has until its use is admitted."""
        self._start()

    def _start(self) -> None:
        self._process = self._core.runtime.process()
        self._mutex = self._core.runtime.mutex()
        self._holding: Holding | None = None
        self._users: list[Use] = []
        self._losers: list[Use] = []
        """Users that lost the lock and may still be working."""
        self._line: deque[_Waiter] = deque()
        self._leading = False
        self._arrivals = 0
        self._next_token = 0
        self._last_token = 0
        self._wanted_at_arrival: int | None = None
        self._wanted_until_ms = 0
        self._served = 0
        self._began_wanted = False
        """True if other clients were already waiting at the latest grant."""
        self._uses = 0
        """How many uses of this grant have ended; counted only while `_look_at_uses` is set."""
        self._look_at_uses: int | None = None
        """Ask the store after this many uses; None to rely on the keeper alone."""

    # ── acquiring ──────────────────────────────────────────────────────────────────────

    def acquire(self, timeout_ms: int | None, use: Use | None = None) -> Coroutine[Any, Any, Use]:
        """As `admit`, and tell observers."""
        if use is None:
            use = Use(self._core.actor())
        if self._core.emitter.observer is None:
            return self.admit(timeout_ms, use)
        from lockfast.flow import observed

        return observed.acquire_use(self, self._core, timeout_ms, use)

    async def admit(self, timeout_ms: int | None, use: Use) -> Use:
        """Make `use` a local user. Raises AcquireTimeoutError after `timeout_ms`."""
        core = self._core
        if self._process != core.runtime.process():
            self._start()  # forked: the grant and its users belong to the parent
        waiter: _Waiter | None = None
        try:
            with self._mutex:
                if self._line:
                    self._serve()
                if not self._line and self._admits(self._arrivals + 1):
                    self._admit(use)
                    return use
                self._refuse_own_deadlock(use.actor, timeout_ms)
                if timeout_ms == 0 and (self._users or self._leading or self._line):
                    raise self._timed_out(0)
                self._arrivals += 1
                use.waited = bool(self._users or self._leading or self._line)
                waiter = _Waiter(use, self._arrivals, core.runtime.signal())
                self._line.append(waiter)
                surplus = self._surplus()
                if surplus is None:
                    self._appoint()
            until_ms = None if timeout_ms is None else core.runtime.now_ms() + timeout_ms
            if surplus is not None:
                await self._release_grant(surplus)
            while use.holding is None:
                left_ms = None if until_ms is None else max(0, until_ms - core.runtime.now_ms())
                if waiter.lead:
                    await self._acquire_from_store(waiter, timeout_ms, left_ms)
                elif left_ms == 0:
                    raise self._timed_out(timeout_ms)
                else:
                    await waiter.signal.wait(left_ms)
            return use
        except BaseException:
            if waiter is not None:
                surplus = self._give_up(waiter)
                if surplus is not None:
                    self._release_grant_later(surplus)
            raise

    async def _acquire_from_store(
        self, waiter: _Waiter, timeout_ms: int | None, left_ms: int | None
    ) -> None:
        """Acquire the lock from the store on behalf of the local queue."""
        holding = Holding(self._ask, "")
        got = stored = False
        try:
            got = await claims.obtain(self._core, holding, 0 if timeout_ms == 0 else left_ms)
            if holding.contended:
                waiter.use.waited = True
        finally:
            try:
                with self._mutex:
                    self._leading = False
                    waiter.lead = False
                    if got:
                        self._begin(holding)
                        stored = True
                        if self._core.emitter.observer is not None:
                            self._report_retained(holding)
                        self._serve()
                        self._appoint()  # in case it is already lost
                    elif waiter in self._line:
                        self._line.remove(waiter)
                        self._appoint()
            finally:
                if not stored and holding.session is not None:
                    holding.session.release_later(holding)  # interrupted just after the grant
        if not got:
            raise self._timed_out(timeout_ms, *claims.who_is_ahead(holding))

    def _timed_out(
        self,
        timeout_ms: int | None,
        holders: tuple[str, ...] = (),
        ahead: int | None = None,
    ) -> AcquireTimeoutError:
        here = tuple(f"{self._core.owner} (token {use.token}, here)" for use in self._users)
        return AcquireTimeoutError(
            self._ask.name, (timeout_ms or 0) / 1000, holders=holders or here, ahead=ahead
        )

    def _begin(self, holding: Holding) -> None:
        self._next_token = holding.token
        self._last_token = holding.token + self._ask.block - 1
        self._wanted_at_arrival = None
        self._served = 0
        holding.on_wanted = functools.partial(self._on_wanted, holding)
        holding.on_end += (self._on_end,)
        self._holding = holding
        # In a busy process the keeper's thread may be scheduled, and receive WAKE_WANTED, only
        # after hundreds of uses. Under contention most grants are wanted from the start and
        # serve one use, so one that relies on the keeper would get most of the uses.
        self._uses = 0
        self._look_at_uses = LOOK_AFTER_USES if self._began_wanted else None
        self._began_wanted = holding.wanted
        if holding.wanted:
            self._note_wanted()

    def _refuse_own_deadlock(self, actor: str, timeout_ms: int | None) -> None:
        if timeout_ms is None and not self._shared:
            for use in self._users:
                if use.actor == actor:
                    raise DeadlockError(
                        self._ask.name,
                        (f"{actor} already holds {self._ask.name!r} (token {use.token})",),
                        "release it first, use reentrant=True, or pass a timeout",
                    )

    # ── serving (all under the mutex) ────────────────────────────────────────────────

    def _admits(self, arrival: int) -> bool:
        """Return True if one more local user may be admitted now."""
        if self._users and not self._shared:
            return False
        holding = self._holding
        if holding is None or holding.session is None or self._next_token > self._last_token:
            return False
        if self._wanted_at_arrival is not None and not (
            arrival <= self._wanted_at_arrival
            and self._served < SERVED_WHILE_WANTED
            and self._core.runtime.now_ms() < self._wanted_until_ms
        ):
            return False
        return holding.session.state_of(holding) in (LeaseState.HELD, LeaseState.UNCERTAIN)

    def _admit(self, use: Use) -> None:
        use.token = self._next_token
        self._next_token += 1
        if self._wanted_at_arrival is not None:
            self._served += 1
        use.holding = self._holding
        self._users.append(use)

    def _serve(self) -> None:
        """Admit users from the head of the local queue, as far as allowed."""
        while self._line and self._admits(self._line[0].arrival):
            waiter = self._line.popleft()
            self._admit(waiter.use)
            waiter.signal.set()

    def _appoint(self) -> None:
        """If the client does not hold the lock, let the head of the local queue acquire it."""
        holding = self._holding
        if holding is not None and holding.phase is not Phase.HELD:
            self._holding = None
        if self._line and self._holding is None and not self._leading and not self._users:
            self._leading = True
            self._line[0].lead = True
            self._line[0].signal.set()

    def _surplus(self) -> Holding | None:
        """Return the grant if it must be released to the store now."""
        holding = self._holding
        if holding is None or self._users:
            return None
        if self._line:
            idle = not self._admits(self._line[0].arrival)
        else:
            idle = self._wanted_at_arrival is not None or self._next_token > self._last_token
        if not idle:
            return None
        self._holding = None
        return holding

    # ── releasing ───────────────────────────────────────────────────────────────────

    async def release(self, use: Use) -> None:
        """End a local use. Raises LeaseLostError if the lock was lost during it."""
        holding = use.holding
        assert holding is not None
        claims.check_process(holding)  # before the mutex, which a fork may have left locked
        with self._mutex:
            if use.ended:
                return
            if use in self._users:
                self._users.remove(use)
            self._stop_work(use)
            session = holding.session
            assert session is not None
            lost = session.state_of(holding) is LeaseState.LOST
            if lost and self._holding is holding:
                self._holding = None
            self._serve()
            surplus = None if lost else self._surplus()
            if surplus is None:
                self._appoint()
            look_due = self._look_due(holding)
            # Last: if Ctrl-C interrupts these steps, the lease's finalizer repeats them.
            use.ended = True
        if use.observed is not None:
            self._report_use_ended(use, lost)
        if use.on_end:
            carry_out(use.on_end)
        if look_due:
            surplus = await self._look(holding)
        if surplus is not None:
            await self._release_grant(surplus)
        if lost:
            raise claims.lost_error(holding)

    def _look_due(self, holding: Holding) -> bool:
        """Count a use that has ended. Return True if the store must be asked who waits."""
        if self._look_at_uses is None or self._holding is not holding:
            return False
        self._uses += 1
        if self._wanted_at_arrival is not None or self._uses < self._look_at_uses:
            return False
        self._look_at_uses *= 2
        return True

    async def _look(self, holding: Holding) -> Holding | None:
        """Ask the store whether others wait. Return the grant if it must be released now."""
        session = holding.session
        assert session is not None
        try:
            look = Look(session.id, holding.n)
            reply = await self._core.wire.send(look, LOOK_MS_MAX)
        except LockfastError:
            return None  # the next keep-alive asks the same, and logs a failure
        with self._mutex:
            if self._holding is not holding or not isinstance(reply, Granted) or not reply.wanted:
                return None
            self._note_wanted()
            return self._surplus()

    def add_on_end(self, use: Use, callback: Callable[[], None]) -> bool:
        """Call `callback` when the use ends. Return False if it has already ended."""
        with self._mutex:
            if use not in self._users:
                return False
            use.on_end += (callback,)
            return True

    def remove_on_end(self, use: Use, callback: Callable[[], None]) -> None:
        """Undo `add_on_end`."""
        with self._mutex:
            use.on_end = without(use.on_end, callback)

    async def _release_grant(self, holding: Holding) -> None:
        try:
            await claims.release(self._core, holding)
        except LeaseLostError as error:
            if holding.phase is not Phase.RELEASED:  # else `_on_wanted` released it as well
                logger.warning("%s", error)
        except LockfastError as error:
            # Nobody here uses the lock; other clients wait until the keeper has released it.
            logger.warning("%s", error)
        finally:
            with self._mutex:
                self._appoint()

    def release_later(self, use: Use) -> None:
        """As `release`, for the keeper after a finalizer ran: sends nothing itself."""
        with self._mutex:
            if use.ended:
                return
            if use in self._users:
                self._users.remove(use)
            self._stop_work(use)
            self._serve()
            surplus = self._surplus()
            if surplus is None:
                self._appoint()
            use.ended = True
        if use.observed is not None:
            self._report_use_ended(use, lost=False)
        if surplus is not None:
            self._release_grant_later(surplus)

    def _report_retained(self, holding: Holding) -> None:
        from lockfast.flow import observed

        observed.report_retained(self._core, holding)

    def _report_use_ended(self, use: Use, lost: bool) -> None:
        from lockfast.flow import observed

        with self._mutex:
            known, use.observed = use.observed, None
        if known is not None:
            observed.report_use_ended(self._core, use, known, lost)

    def _stop_work(self, use: Use) -> None:
        """Record that a user has stopped working. After the last one, a successor elsewhere
        need not wait for the margin."""
        if use in self._losers:
            self._losers.remove(use)
        holding = use.holding
        others = (*self._users, *self._losers)
        if holding is not None and not any(other.holding is holding for other in others):
            assert holding.session is not None
            holding.session.work_has_stopped(holding)

    def _on_wanted(self, holding: Holding) -> None:
        """Handle WAKE_WANTED: other clients wait. Called on the thread that received it."""
        with self._mutex:
            if holding is self._holding:
                self._note_wanted()
                surplus = self._surplus()
            else:
                # Its release is in flight, or was interrupted by Ctrl-C: release it again.
                surplus = holding
        if surplus is not None:
            self._release_grant_later(surplus)

    def _note_wanted(self) -> None:
        if self._wanted_at_arrival is None:
            self._wanted_at_arrival = self._arrivals
            self._wanted_until_ms = self._core.runtime.now_ms() + SERVED_MS_WHILE_WANTED
            self._served = 0

    def _on_end(self) -> None:
        """Handle the end of the grant, lost or released. Called on the thread that detects it."""
        with self._mutex:
            # Local waiters do not wait until the users that lost the lock have stopped:
            # whoever acquires it next, here or elsewhere, has a higher token.
            users, self._users = self._users, []
            lost: list[Use] = []
            for use in users:
                held = use.holding is not None and use.holding.phase is Phase.HELD
                (self._users if held else lost).append(use)
            self._losers += lost
            holding = self._holding
            if holding is not None and holding.session is not None and not lost:
                holding.session.work_has_stopped(holding)
            self._appoint()
        for use in lost:
            if use.observed is not None:
                self._report_use_ended(use, lost=True)
        carry_out([callback for use in lost for callback in use.on_end])

    def _release_grant_later(self, holding: Holding) -> None:
        session = holding.session
        if session is not None:
            session.release_later(holding)
        with self._mutex:
            self._appoint()

    def _give_up(self, waiter: _Waiter) -> Holding | None:
        """Remove a waiter from the local queue. Return the grant if it must be released now."""
        with self._mutex:
            use = waiter.use
            if use.holding is not None:
                if use in self._users:
                    self._users.remove(use)
                self._serve()
                surplus = self._surplus()
                if surplus is None:
                    self._appoint()
                use.ended = True
                return surplus
            if waiter in self._line:
                self._line.remove(waiter)
            if waiter.lead:
                self._leading = waiter.lead = False
            self._appoint()
            return None
