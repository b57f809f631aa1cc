"""The claims of a session in its client: entering, waiting, held, and how each of them ends.

Methods named by a participle (`granted`, `queued`, `released`, `lost`) record what the store
replied; those named by an imperative (`release_later`, `expire`) are decisions of this client.
`flow/__init__.py` defines the verbs.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final
from weakref import WeakValueDictionary

from lockfast.core.commands import (
    WAKE_LOOK,
    Blocker,
    Convert,
    Granted,
    Leave,
    Queued,
    Reply,
    Wake,
)
from lockfast.core.reasons import (
    LOST_CLOSED,
    LOST_MAX_HOLD,
    LOST_MISSING,
    LOST_REVOKED,
    MAX_HOLD_ELAPSED,
)
from lockfast.flow.effects import carry_out
from lockfast.flow.holding import (
    ENTERING,
    HELD,
    LOST,
    RELEASED,
    WAITING,
    Holding,
    LeaseState,
    Phase,
    full_span_ms,
)
from lockfast.flow.log import logger
from lockfast.flow.outbox import Outbox
from lockfast.flow.session_life import KeeperState, SessionLife, margin_ms
from lockfast.ports import Runtime, Signal

if TYPE_CHECKING:
    from lockfast.flow.retained import RetainedLock, Use

DEADLOCK_AFTER_MS: Final = 1000
NEVER_MS: Final = 1 << 60
FIXED_TERM_ELAPSED: Final = "its fixed term elapsed"
IS_HELD, IS_LOST = LeaseState.HELD, LeaseState.LOST


class SessionClaims(SessionLife):
    """A session and its claims, as far as callers use them."""

    def __init__(self, runtime: Runtime, ttl_ms: int, owner: str, metadata: str):
        super().__init__(runtime, ttl_ms, owner, metadata)
        self.contenders: WeakValueDictionary[int, Holding] = WeakValueDictionary()
        """Contending claims by number, in a store without a queue, for wakes to find them."""
        self.look_at_ms: int | None = None
        self.deadlock_after_ms = DEADLOCK_AFTER_MS
        self.deadlock_at_ms: int | None = None
        """When to search for deadlocks next; None while no claim waits."""
        self.events_changed: list[Callable[[], None]] = []
        self.work_stopped = runtime.signal()
        """Set when no holder still works under a lease that was lost with the session."""
        self._working: dict[int, Holding] = {}
        """Claims held when the session ended, whose holders may not have stopped yet."""
        self._holdings: dict[int, Holding] = {}
        self._held: dict[int, Holding] = {}
        """The held claims among `_holdings`, listed separately because usually few are held."""
        self._lines: dict[tuple[str, str], dict[int, None]] = {}
        """Our waiting claims in each queue, in order of arrival."""
        self._bounded: dict[int, Holding] = {}
        self._outbox = Outbox()
        self._finalized: deque[Holding] = deque()
        self._finalized_uses: deque[tuple[RetainedLock, Use]] = deque()
        self._inbox: list[Wake] = []
        self._next_n = 1

    # ── claims move on ────────────────────────────────────────────────────────────────

    def granted(self, holding: Holding, reply: Granted, sent_ms: int) -> None:
        """Record that the store granted the claim, in reply to a request sent at `sent_ms`."""
        with self.mutex:
            if holding.phase is LOST or holding.phase is RELEASED:
                return
            if holding.phase is WAITING:
                self._stop_waiting(holding)
            effect = self._hold(holding, reply, sent_ms)
        if effect is not None:
            carry_out([effect])

    def queued(self, holding: Holding, reply: Queued) -> None:
        """Record that the claim waits in the queue."""
        now_ms = self.runtime.now_ms()
        looks = False
        with self.mutex:
            if holding.phase is ENTERING:
                holding.phase = WAITING
                holding.since_ms = now_ms
                for place in holding.ask.places:
                    self._lines.setdefault(place[:2], {})[holding.n] = None
                if holding.look_when_queued:
                    holding.look_when_queued = False
                    self._inbox.append(Wake("", self.id, holding.n, WAKE_LOOK))
                    looks = True
            elif holding.phase is not WAITING and not holding.converting:
                return
            holding.ahead = reply.ahead
            sooner = (holding.converting or self._is_foremost(holding)) and self._look_by(
                now_ms + reply.look_ms
            )
            look_ms = now_ms + self.deadlock_after_ms
            if self.deadlock_at_ms is None or look_ms < self.deadlock_at_ms:
                self.deadlock_at_ms = look_ms
                sooner = True
            self._watch_over(holding.n, reply.ahead)
        if sooner or looks:
            self.listener.interrupt()

    def lost(self, holding: Holding, reason: str, by: str = "") -> None:
        """Record that the store revoked the claim or has no record of it."""
        with self.mutex:
            why = LOST_MAX_HOLD if reason == MAX_HOLD_ELAPSED else LOST_MISSING
            effects = self._lose(holding, reason, by, LOST_REVOKED if by else why)
        carry_out(effects)

    def released(self, holding: Holding) -> None:
        """Record that the store has removed the claim, or certainly never had it."""
        with self.mutex:
            self._remove(holding, RELEASED)
        if holding.held_us is not None:
            self.report_end(holding)
        if holding.on_end:
            carry_out(holding.on_end)

    def release_later(self, holding: Holding, close_ms: int = 0) -> None:
        """Let the keeper send `Leave` for the claim until the store replies."""
        if self.process != self.runtime.process():
            return
        with self.mutex:
            # Decide by `_holdings`, not by phase, and fill the outbox first: a caller that is
            # interrupted (Ctrl-C) between two of these steps calls this method again.
            if holding.n not in self._holdings:
                return
            if not self.snapshot.ended:
                leave = Leave(self.id, holding.n, holding.ask.places, full_span_ms(close_ms))
                self._outbox.put(holding.n, leave)
            self._remove(holding, RELEASED)
        if holding.held_us is not None:
            self.report_end(holding)
        carry_out(holding.on_end)
        self.listener.interrupt()

    def release_from_finalizer(self, holding: Holding) -> None:
        """As `release_later`, for finalizers: they may run anywhere, so this locks no mutex."""
        if self.process == self.runtime.process() and not self.snapshot.ended:
            self._finalized.append(holding)
            self.listener.interrupt()

    def release_use_from_finalizer(self, lock: RetainedLock, use: Use) -> None:
        """As `release_from_finalizer`, for one local user of a retained lock."""
        if self.process == self.runtime.process() and not self.snapshot.ended:
            self._finalized_uses.append((lock, use))
            self.listener.interrupt()

    def begin_conversion(self, holding: Holding, signal: Signal) -> int:
        """Start a conversion and return its number; `signal` is set when the claim changes."""
        with self.mutex:
            holding.step += 1
            holding.changed = signal
            holding.converting = True
            holding.since_ms = self.runtime.now_ms()
            return holding.step

    def cancel_conversion(self, holding: Holding, mode: str) -> None:
        """Let the keeper cancel a conversion by converting the claim to `mode`.

        The store may already have granted the conversion, so the caller states the mode.
        """
        with self.mutex:
            if holding.phase is not HELD or self.snapshot.ended:
                return
            holding.step += 1
            self._outbox.put(holding.n, Convert(self.id, holding.n, holding.step, mode))
        self.listener.interrupt()

    def conversion_cancelled(self, command: Convert, reply: Reply, sent_ms: int) -> None:
        """Record the cancelled conversion; if it had been granted, the claim has a new token."""
        with self.mutex:
            holding = self._holdings.get(command.n)
            if isinstance(reply, Granted) and holding is not None and holding.step == command.step:
                self.granted(holding, reply, sent_ms)

    def end_conversion(self, holding: Holding) -> None:
        with self.mutex:
            holding.changed = None
            holding.converting = False
            self._watch_over(holding.n, ())

    def _hold(self, holding: Holding, reply: Granted, sent_ms: int) -> Callable[[], None] | None:
        holding.phase = HELD
        self._held[holding.n] = holding
        holding.token, for_ms, mode, wanted = reply
        holding.granted_at_ms = sent_ms - for_ms
        if wanted:
            holding.wanted = True
        if mode:
            holding.mode = mode
        ask = holding.ask
        if (ask.max_hold_ms or ask.fixed_ms) and holding.hold_deadline_ms is None:
            span_ms = holding.bound_ms
            holding.hold_deadline_ms = holding.granted_at_ms + span_ms - margin_ms(span_ms)
            self._bounded[holding.n] = holding
            self._look_by(holding.hold_deadline_ms)
            self.listener.interrupt()
        changed = holding.changed
        return changed.set if changed is not None else None

    def report_end(self, holding: Holding) -> None:
        """Tell observers that a lease has ended, unless another thread has done so."""
        with self.mutex:
            if holding.being_granted:
                return
            held_us, holding.held_us = holding.held_us, None
        is_loss = holding.phase is LOST and holding.ask.block <= 1 and holding.why != LOST_CLOSED
        if held_us is None and not is_loss:
            # Nobody observes. The import would make Python forget that Ctrl-C caused the exit of
            # the process, or believe so if it is interrupted itself.
            return
        from lockfast.flow import observed

        if holding.ask.block > 1:
            if held_us is not None:
                observed.report_returned(self, holding, held_us)
        elif holding.phase is LOST:
            observed.report_lost(self, holding, held_us, holding.why)
        elif held_us is not None:
            observed.report_released(self, holding, held_us)

    def _lose(self, holding: Holding, reason: str, by: str, why: str) -> list[Callable[[], None]]:
        if holding.phase in (LOST, RELEASED):
            return []
        was_held = holding.phase is HELD
        holding.reason = reason
        holding.by = by
        holding.why = why
        holding.lost_ms = self.runtime.now_ms()
        self._remove(holding, LOST)
        effects = list(holding.on_end) if was_held else []
        if was_held:
            effects.append(partial(self.report_end, holding))
        if holding.changed is not None:
            effects.append(holding.changed.set)
        return effects

    def _remove(self, holding: Holding, phase: Phase) -> None:
        if holding.phase is WAITING:
            self._stop_waiting(holding)
        if holding.phase is not LOST:
            holding.phase = phase
        # Last: while the claim is registered, an interrupted call can still be repeated.
        self._held.pop(holding.n, None)
        self._holdings.pop(holding.n, None)
        if self._bounded:
            self._bounded.pop(holding.n, None)

    def _stop_waiting(self, holding: Holding) -> None:
        for place in holding.ask.places:
            line = self._lines.get(place[:2])
            if line is not None:
                line.pop(holding.n, None)
                if not line:
                    del self._lines[place[:2]]
        self._watch_over(holding.n, ())

    def _watch_over(self, n: int, blockers: Sequence[Blocker]) -> None:
        """Ask the listener to report if one of these processes exits."""
        try:
            self.listener.watch_over(n, blockers)
        except Exception as error:
            # Another client may have stored a malformed process id. Its claims end by TTL.
            logger.warning("cannot watch the processes ahead of claim %d: %r", n, error)

    def _is_foremost(self, holding: Holding) -> bool:
        return any(
            next(iter(self._lines[place[:2]]), None) == holding.n for place in holding.ask.places
        )

    def _look_by(self, at_ms: int) -> bool:
        if self.look_at_ms is None or at_ms < self.look_at_ms:
            self.look_at_ms = at_ms
            return True
        return False

    # ── the state of a lease ──────────────────────────────────────────────────────────

    def state_of(self, holding: Holding) -> LeaseState:
        """Return a lease's state, computed from the clock even if the keeper is delayed."""
        if self.process != self.runtime.process():
            return IS_LOST
        if holding.phase is HELD:
            bound = holding.hold_deadline_ms
            if bound is not None and self.runtime.now_ms() >= bound:
                self.expire(holding)
            elif self.alive():
                return IS_HELD if self.snapshot.confirmed else LeaseState.UNCERTAIN
        return LeaseState.RELEASED if holding.phase is RELEASED else IS_LOST

    def deadline_of(self, holding: Holding) -> int:
        """Return the local time at which the lease ends unless the session is renewed."""
        deadline_ms = self.snapshot.deadline_ms
        bound = holding.hold_deadline_ms
        return deadline_ms if bound is None else min(deadline_ms, bound)

    def expire(self, holding: Holding) -> None:
        """Lose a claim whose max_hold or fixed term is over; the keeper sends `Leave`."""
        ask = holding.ask
        with self.mutex:
            if holding.phase is not HELD or holding.hold_deadline_ms is None:
                return
            # The holder may work until it checks the lease, so this is a loss, not a release:
            # admit the successor after the margin, or once the holder has stopped.
            leave = Leave(self.id, holding.n, ask.places, full_span_ms(ask.lock_delay_ms))
            not_before_ms = holding.hold_deadline_ms + margin_ms(holding.bound_ms)
            is_fixed = holding.hold_deadline_ms < self._max_hold_end_ms(holding)
            self._outbox.put(holding.n, leave, not_before_ms)
            reason = FIXED_TERM_ELAPSED if is_fixed else MAX_HOLD_ELAPSED
            effects = self._lose(holding, reason, "", LOST_MAX_HOLD)
        carry_out(effects)
        self.listener.interrupt()

    def extend(self, holding: Holding, by_ms: int) -> bool:
        """Move the end of a fixed lease, up to its max_hold. Return False if it is lost."""
        if self.state_of(holding) in (IS_LOST, LeaseState.RELEASED):
            return False
        with self.mutex:
            if holding.phase is not HELD or holding.hold_deadline_ms is None:
                return False
            end_ms = holding.hold_deadline_ms + by_ms
            holding.hold_deadline_ms = min(end_ms, self._max_hold_end_ms(holding))
            return True

    @staticmethod
    def _max_hold_end_ms(holding: Holding) -> int:
        span_ms = holding.ask.max_hold_ms
        return holding.granted_at_ms + span_ms - margin_ms(span_ms) if span_ms else NEVER_MS

    def work_has_stopped(self, holding: Holding) -> None:
        """Record that the holder of a lost lease has stopped, so its successor may enter.

        Finalizers call this too, so it locks no mutex.
        """
        if self._outbox.send_now(holding.n):
            self.listener.interrupt()
        if self._working.pop(holding.n, None) is not None and not self._working:
            self.work_stopped.set()

    def work_left_ms(self) -> int:
        """Return how long holders of lost leases may work before the store expires them."""
        if not self._working or self.closing:
            return 0
        return self.snapshot.deadline_ms + margin_ms(self.ttl_ms) - self.runtime.now_ms()

    # ── the end of the session ────────────────────────────────────────────────────────

    def end_if_unused(self) -> None:
        """End the session and its keeper if it never reached the store and has no claims."""
        with self.mutex:
            unused = self._opening_sent_ms is None and not self._holdings
        if unused:
            self.end("the session was never opened")

    def _before_claims_are_lost(self) -> None:
        self._working = dict(self._held)

    def _lose_claims(self) -> list[Callable[[], None]]:
        effects: list[Callable[[], None]] = []
        # Includes the claims that an earlier, interrupted call did not reach.
        for holding in list(self._holdings.values()):
            effects += self._lose(holding, self.snapshot.ended, self.snapshot.by, self.why)
            self._holdings.pop(holding.n, None)
        self._outbox.clear()
        return effects

    def close(self, on_keeper_stopped: Callable[[], None] | None = None) -> bool:
        """Let the keeper release everything and stop. Return False if it has already stopped."""
        with self.mutex:
            self.closing = True
            self._outbox.send_all_now()
            if self.keeper in (KeeperState.NONE, KeeperState.STOPPED):
                return False
            if self.snapshot.ended and not self.was_sent():
                return False  # the keeper has nothing left to send
            if on_keeper_stopped is not None:
                self.on_keeper_stopped.append(on_keeper_stopped)
        self.work_stopped.set()
        self.listener.interrupt()
        return True
