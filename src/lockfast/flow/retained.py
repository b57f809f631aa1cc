"""Locks that stay with their session after release, for its next local user.

The grant is taken from the store once, with a block of tokens; local users then follow
each other without a store operation, each with the next token of the block. When others
want the lock, the store says so and it is given up: at once if nobody uses it, else when
those who use it or already stood in the local line have had their turn, within a bound.
"""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from lockfast.core.commands import Granted, Look
from lockfast.core.modes import EXCLUSIVE
from lockfast.errors import AcquireTimeoutError, DeadlockError, LeaseLostError, LockfastError
from lockfast.flow import acquire as claims
from lockfast.flow.effects import carry_out, without
from lockfast.flow.holding import Ask, Holding, LeaseState, Phase
from lockfast.flow.log import logger

if TYPE_CHECKING:
    from lockfast.flow.client import Core
    from lockfast.ports import Signal

BLOCK: Final = 4096
"""Tokens reserved with a grant; when they are used up, the lock is taken anew."""
SERVED_WHILE_WANTED: Final = 32
"""As many local users as may still follow while others wait for the lock,"""
SERVED_MS_WHILE_WANTED: Final = 20
"""and for no longer than this."""
LOOK_AFTER_USES: Final = 32
"""If others were already waiting when the previous grant was made, the client asks the store
after this many uses whether others wait again, and each time the number has doubled."""
LOOK_MS_MAX: Final = 1000
"""How long such a request may delay the caller's release; the keeper asks as well."""


class Use:
    """One local user of a kept lock.

    It is made before it is let in, so that whoever is interrupted has what to give back.
    """

    __slots__ = ("actor", "holding", "on_over", "over", "token")

    def __init__(self, actor: str) -> None:
        self.actor = actor
        self.holding: Holding | None = None
        """The grant it uses; None until it is let in."""
        self.token = 0
        self.over = False
        self.on_over: tuple[Callable[[], None], ...] = ()
        """Called when it loses the lock or gives it back."""


class _Waiter:
    __slots__ = ("arrival", "lead", "signal", "use")

    def __init__(self, use: Use, arrival: int, signal: Signal) -> None:
        self.use = use
        self.arrival = arrival
        self.signal = signal
        self.lead = False
        """It is this one's turn to take the lock from the store."""


class RetainedLock:
    """One lock kept by one client: the grant, its users, and their local line."""

    def __init__(self, core: Core, ask: Ask) -> None:
        self._core = core
        self._ask = ask._replace(block=BLOCK)
        self._shared = ask.places[0].mode != EXCLUSIVE
        self.nothing = Holding(self._ask, "")
        """What a lease has before its use is let in."""
        self._start()

    def _start(self) -> None:
        self._process = self._core.runtime.process()
        self._mutex = self._core.runtime.mutex()
        self._holding: Holding | None = None
        self._users: list[Use] = []
        self._losers: list[Use] = []
        """Users that lost the lock and have not stopped yet."""
        self._line: deque[_Waiter] = deque()
        self._leading = False
        self._arrivals = 0
        self._next_token = 0
        self._last_token = 0
        self._wanted_at_arrival: int | None = None
        self._wanted_until_ms = 0
        self._served = 0
        self._began_wanted = False
        """Whether others were already waiting when the latest grant was made."""
        self._uses = 0
        """How many uses of this grant have ended, if they are counted."""
        self._look_at_uses: int | None = None
        """Ask the store after that many uses; None: rely on the keeper alone."""

    # ── taking ───────────────────────────────────────────────────────────────────────

    async def take(self, timeout_ms: int | None, use: Use | None = None) -> Use:
        """Become a local user. Raises AcquireTimeoutError after `timeout_ms`."""
        core = self._core
        if self._process != core.runtime.process():
            self._start()  # a fork: the grant and its users stay with the parent
        if use is None:
            use = Use(core.actor())
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
                waiter = _Waiter(use, self._arrivals, core.runtime.signal())
                self._line.append(waiter)
                surplus = self._surplus()
                if surplus is None:
                    self._appoint()
            until_ms = None if timeout_ms is None else core.runtime.now_ms() + timeout_ms
            if surplus is not None:
                await self._return(surplus)
            while use.holding is None:
                left_ms = None if until_ms is None else max(0, until_ms - core.runtime.now_ms())
                if waiter.lead:
                    await self._lead(waiter, timeout_ms, left_ms)
                elif left_ms == 0:
                    raise self._timed_out(timeout_ms)
                else:
                    await waiter.signal.wait(left_ms)
            return use
        except BaseException:
            if waiter is not None:
                surplus = self._withdraw(waiter)
                if surplus is not None:
                    self._abandon(surplus)
            raise

    async def _lead(self, waiter: _Waiter, timeout_ms: int | None, left_ms: int | None) -> None:
        """Take the lock from the store on behalf of the local line."""
        holding = Holding(self._ask, "")
        got = kept = False
        try:
            got = await claims.acquire(self._core, holding, 0 if timeout_ms == 0 else left_ms)
        finally:
            try:
                with self._mutex:
                    self._leading = False
                    waiter.lead = False
                    if got:
                        self._begin(holding)
                        kept = True
                        self._serve()
                        self._appoint()  # should it be lost already
                    elif waiter in self._line:
                        self._line.remove(waiter)
                        self._appoint()
            finally:
                if not kept and holding.session is not None:
                    holding.session.abandon(holding)  # interrupted just after it was granted
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
        self._last_token = holding.token + BLOCK - 1
        self._wanted_at_arrival = None
        self._served = 0
        holding.on_wanted = functools.partial(self._on_wanted, holding)
        holding.on_over += (self._on_over,)
        self._holding = holding
        # In a busy process the keeper's thread may get to run, and hear "wanted", only after
        # hundreds of uses. Under contention most grants begin wanted and serve one use, so a
        # grant that does not would take most of the uses.
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
        """Whether one more local user may follow now."""
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
        """Let those at the head of the local line follow, as far as they may."""
        while self._line and self._admits(self._line[0].arrival):
            waiter = self._line.popleft()
            self._admit(waiter.use)
            waiter.signal.set()

    def _appoint(self) -> None:
        """If the lock is not ours (any more), have the head of the line get it."""
        holding = self._holding
        if holding is not None and holding.phase is not Phase.HELD:
            self._holding = None
        if self._line and self._holding is None and not self._leading and not self._users:
            self._leading = True
            self._line[0].lead = True
            self._line[0].signal.set()

    def _surplus(self) -> Holding | None:
        """The grant, if it is to go back to the store now."""
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

    # ── giving back ──────────────────────────────────────────────────────────────────

    async def give(self, use: Use) -> None:
        """The local user is done. Raises LeaseLostError if it lost the lock meanwhile."""
        holding = use.holding
        assert holding is not None
        claims.check_process(holding)  # before the mutex, which a fork may have left locked
        with self._mutex:
            if use.over:
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
            # Last: if this is cut short (Ctrl-C), it is done again when the lease is collected.
            use.over = True
        if use.on_over:
            carry_out(use.on_over)
        if look_due:
            surplus = await self._look(holding)
        if surplus is not None:
            await self._return(surplus)
        if lost:
            raise claims.lost_error(holding)

    def _look_due(self, holding: Holding) -> bool:
        """Count a use that has ended; True if it is time to ask who waits for the lock."""
        if self._look_at_uses is None or self._holding is not holding:
            return False
        self._uses += 1
        if self._wanted_at_arrival is not None or self._uses < self._look_at_uses:
            return False
        self._look_at_uses *= 2
        return True

    async def _look(self, holding: Holding) -> Holding | None:
        """Ask the store whether others wait. Return the grant, if it is to go back now."""
        session = holding.session
        assert session is not None
        try:
            look = Look(session.id, holding.n)
            reply = await self._core.wire.send(look, LOOK_MS_MAX)
        except LockfastError:
            return None  # the keeper's next keep-alive finds out, or logs that it cannot
        with self._mutex:
            if self._holding is not holding or not isinstance(reply, Granted) or not reply.wanted:
                return None
            self._note_wanted()
            return self._surplus()

    def when_over(self, use: Use, callback: Callable[[], None]) -> bool:
        """Call back when a user loses the lock or gives it back; False if that is past."""
        with self._mutex:
            if use not in self._users:
                return False
            use.on_over += (callback,)
            return True

    def not_any_more(self, use: Use, callback: Callable[[], None]) -> None:
        """Undo `when_over`."""
        with self._mutex:
            use.on_over = without(use.on_over, callback)

    async def _return(self, holding: Holding) -> None:
        try:
            await claims.release(self._core, holding)
        except LeaseLostError as error:
            if holding.phase is not Phase.RELEASED:  # else `_on_wanted` gave it back as well
                logger.warning("%s", error)
        except LockfastError as error:
            # Nobody uses it any more, so nothing is lost but time.
            logger.warning("%s", error)
        finally:
            with self._mutex:
                self._appoint()

    def drop(self, use: Use) -> None:
        """As `give`, from a finalizer or after an interruption: the keeper does the rest."""
        with self._mutex:
            if use.over:
                return
            if use in self._users:
                self._users.remove(use)
            self._stop_work(use)
            self._serve()
            surplus = self._surplus()
            if surplus is None:
                self._appoint()
            use.over = True
        if surplus is not None:
            self._abandon(surplus)

    def _stop_work(self, use: Use) -> None:
        """A user that may have lost the lock has stopped; with the last of them, its successor
        elsewhere need not be kept waiting."""
        if use in self._losers:
            self._losers.remove(use)
        holding = use.holding
        others = (*self._users, *self._losers)
        if holding is not None and not any(other.holding is holding for other in others):
            assert holding.session is not None
            holding.session.work_has_stopped(holding)

    def _on_wanted(self, holding: Holding) -> None:
        """Others wait for the lock; on whichever thread heard it."""
        with self._mutex:
            if holding is self._holding:
                self._note_wanted()
                surplus = self._surplus()
            else:
                # On its way back, or its way back was cut short (Ctrl-C): once more, then.
                surplus = holding
        if surplus is not None:
            self._abandon(surplus)

    def _note_wanted(self) -> None:
        if self._wanted_at_arrival is None:
            self._wanted_at_arrival = self._arrivals
            self._wanted_until_ms = self._core.runtime.now_ms() + SERVED_MS_WHILE_WANTED
            self._served = 0

    def _on_over(self) -> None:
        """The grant is lost or went back; on whichever thread noticed."""
        with self._mutex:
            # Nobody here waits until those who lost it have noticed: whoever gets the lock
            # next, here or elsewhere, has a higher token.
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
        carry_out([callback for use in lost for callback in use.on_over])

    def _abandon(self, holding: Holding) -> None:
        session = holding.session
        if session is not None:
            session.abandon(holding)
        with self._mutex:
            self._appoint()

    def _withdraw(self, waiter: _Waiter) -> Holding | None:
        """A local waiter gives up; what it was just given goes on to the next."""
        with self._mutex:
            use = waiter.use
            if use.holding is not None:
                if use in self._users:
                    self._users.remove(use)
                self._serve()
                surplus = self._surplus()
                if surplus is None:
                    self._appoint()
                use.over = True
                return surplus
            if waiter in self._line:
                self._line.remove(waiter)
            if waiter.lead:
                self._leading = waiter.lead = False
            self._appoint()
            return None
