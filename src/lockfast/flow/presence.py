"""The state of a session that callers and the keeper share: its claims and its deadline.

All changes are made under one mutex, which is never held across I/O. The signals and
callbacks that follow a change run after the mutex is released.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple
from weakref import WeakValueDictionary

from lockfast.core.commands import (
    WAKE_LOOK,
    Blocker,
    Command,
    Convert,
    Ended,
    Granted,
    Leave,
    Open,
    Queued,
    Reply,
    Wake,
)
from lockfast.flow.effects import carry_out
from lockfast.flow.holding import (
    ENTERING,
    HELD,
    OVER,
    RELEASED,
    WAITING,
    Holding,
    LeaseState,
    Phase,
)
from lockfast.flow.log import logger
from lockfast.ports import Runtime, Signal, WakeListener

if TYPE_CHECKING:
    from lockfast.flow.retained import RetainedLock, Use

STOPPING_SHARE: Final = 30
"""The client declares a lease lost 1/30 of the TTL before the store expires it. Holders use
this margin to stop. It also covers differing clock rates: the kernel slews by at most 0.05 %."""
STOPPING_MS_MAX: Final = 1000
DEADLOCK_AFTER_MS: Final = 1000
IS_HELD, LOST = LeaseState.HELD, LeaseState.LOST


def margin_ms(ttl_ms: int) -> int:
    """Return how long before the store expires a lease the client declares it lost."""
    return max(1, min(ttl_ms // STOPPING_SHARE, STOPPING_MS_MAX))


class Snapshot(NamedTuple):
    """The state of the session; immutable, and replaced as a whole."""

    opened: bool = False
    deadline_ms: int = 0
    confirmed: bool = True
    """True if the store replied to the last keep-alive."""
    ended: str = ""
    by: str = ""
    ended_ms: int = 0


class _NoWakeListener:
    """A listener that receives nothing, for a session not yet attached to its store."""

    inbox = process = ""

    async def listen(self, timeout_ms: int | None) -> tuple[Wake, ...]:
        return ()

    def interrupt(self) -> None: ...

    def watch_over(self, n: int, blockers: Sequence[Blocker]) -> None: ...

    def dead(self, blockers: Sequence[Blocker]) -> Sequence[str]:
        return ()

    def close(self) -> None: ...


class Presence:
    """The part of a session that callers use."""

    __slots__ = (
        "_bounded",
        "_dropped",
        "_dropped_uses",
        "_held",
        "_holdings",
        "_inbox",
        "_lines",
        "_looked_up_to",
        "_metadata",
        "_next_n",
        "_not_before_ms",
        "_opening_sent_ms",
        "_openings",
        "_outbox",
        "_working",
        "closing",
        "contenders",
        "deadlock_after_ms",
        "deadlock_at_ms",
        "ended_in_store",
        "events_changed",
        "gone",
        "id",
        "keeping",
        "kept",
        "listener",
        "look_at_ms",
        "mutex",
        "on_end",
        "on_gone",
        "owner",
        "process",
        "runtime",
        "snapshot",
        "ttl_ms",
        "work_stopped",
    )

    def __init__(self, runtime: Runtime, ttl_ms: int, owner: str, metadata: str):
        self.id = runtime.unique()
        self.ttl_ms = ttl_ms
        self.owner = owner
        self.runtime = runtime
        self.process = runtime.process()
        self.listener: WakeListener = _NoWakeListener()
        self.mutex = runtime.mutex()
        self.snapshot = Snapshot()
        self.closing = False
        self.keeping = False
        """A keeper was started for this session."""
        self.kept = False
        """The keeper is running."""
        self.gone = False
        """The keeper has stopped."""
        self.on_gone: list[Callable[[], None]] = []
        self.contenders: WeakValueDictionary[int, Holding] = WeakValueDictionary()
        """Contending claims by number, in a store without a queue, for wakes to find them."""
        self.look_at_ms: int | None = None
        self.deadlock_after_ms = DEADLOCK_AFTER_MS
        self.deadlock_at_ms: int | None = None
        """When to search for deadlocks next; None while no claim waits."""
        self.events_changed: list[Callable[[], None]] = []
        self.on_end: list[Callable[[], None]] = []
        self._metadata = metadata
        self.ended_in_store = False
        """The store reported the end of the session, so the keeper need not end it there."""
        self.work_stopped = runtime.signal()
        """Set when no holder still works under a lease that was lost with the session."""
        self._working: dict[int, Holding] = {}
        """Claims held when the session ended, whose holders may not have stopped yet."""
        self._opening_sent_ms: int | None = None
        self._openings = 0
        """The number of `Open` commands that may have reached the store."""
        self._holdings: dict[int, Holding] = {}
        self._held: dict[int, Holding] = {}
        """The held claims among `_holdings`, kept apart because usually only few are held."""
        self._lines: dict[tuple[str, str], dict[int, None]] = {}
        """Our waiting claims in each queue, in order of arrival."""
        self._bounded: dict[int, Holding] = {}
        self._outbox: dict[int, Command] = {}
        self._not_before_ms: dict[int, int] = {}
        """The earliest time at which some outbox commands may be sent."""
        self._dropped: deque[Holding] = deque()
        self._dropped_uses: deque[tuple[RetainedLock, Use]] = deque()
        self._inbox: list[Wake] = []
        self._next_n = 1
        self._looked_up_to = 0

    # ── opening ───────────────────────────────────────────────────────────────────────

    def forsake(self) -> None:
        """Give up a session whose keeper could not be started."""
        self.end("its keeper could not be started")
        with self.mutex:
            self.gone = not self.kept
        if self.gone:
            self.listener.close()

    def opening(self) -> Open | None:
        """Return the command that opens the session, or None if the store already has it.

        It is sent along with the first claims. The caller must report the outcome with
        `opened`, or with `opening_refused` if the command certainly was not executed.
        """
        if self.snapshot.opened:
            return None
        with self.mutex:
            self._openings += 1
            if self._opening_sent_ms is None:
                # Count the TTL from the first attempt: a later one may find the session
                # open, and does not renew it.
                self._opening_sent_ms = self.runtime.now_ms()
                deadline_ms = self._opening_sent_ms + self.ttl_ms - margin_ms(self.ttl_ms)
                self.snapshot = self.snapshot._replace(deadline_ms=deadline_ms)
        return Open(
            self.id,
            self.ttl_ms,
            self.owner,
            self._metadata,
            self.listener.inbox,
            self.listener.process,
        )

    def opening_refused(self) -> None:
        """Record that one `Open` certainly did not reach the store."""
        with self.mutex:
            self._openings -= 1
            if not self._openings and not self.snapshot.opened and not self.snapshot.ended:
                self._opening_sent_ms = None
                self.snapshot = self.snapshot._replace(deadline_ms=0)

    def end_if_unused(self) -> None:
        """End the session and its keeper if it never reached the store and has no claims."""
        with self.mutex:
            unused = self._opening_sent_ms is None and not self._holdings
        if unused:
            self.end("it never reached the store")

    def opened(self) -> None:
        """Record that the store has opened the session."""
        with self.mutex:
            snapshot = self.snapshot
            if snapshot.opened or snapshot.ended:
                return
            self.snapshot = snapshot._replace(opened=True)
        self.listener.interrupt()

    # ── claims move on ────────────────────────────────────────────────────────────────

    def granted(self, holding: Holding, reply: Granted, sent_ms: int) -> None:
        """Record that the store granted the claim, in reply to a request sent at `sent_ms`."""
        with self.mutex:
            if holding.phase is OVER or holding.phase is RELEASED:
                return
            if holding.phase is WAITING:
                self._out_of_line(holding)
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

    def over(self, holding: Holding, reason: str, by: str = "") -> None:
        """Record that the claim was lost or removed from the queue."""
        with self.mutex:
            effects = self._finish(holding, reason, by)
        carry_out(effects)

    def forget(self, holding: Holding) -> None:
        """Remove a claim that the store does not have (any more)."""
        with self.mutex:
            self._drop(holding, RELEASED)
        if holding.on_over:
            carry_out(holding.on_over)

    def abandon(self, holding: Holding, close_ms: int = 0) -> None:
        """Let the keeper remove the claim from the store, whatever its phase."""
        if self.process != self.runtime.process():
            return
        with self.mutex:
            # Decide by `_holdings`, not by phase, and fill the outbox first: a caller that is
            # interrupted (Ctrl-C) between two of these steps calls this method again.
            if holding.n not in self._holdings:
                return
            if not self.snapshot.ended:
                self._outbox[holding.n] = Leave(self.id, holding.n, holding.ask.places, close_ms)
            self._drop(holding, RELEASED)
        carry_out(holding.on_over)
        self.listener.interrupt()

    def drop(self, holding: Holding) -> None:
        """Abandon a claim from a finalizer, which may run anywhere and so locks no mutex."""
        if self.process == self.runtime.process() and not self.snapshot.ended:
            self._dropped.append(holding)
            self.listener.interrupt()

    def drop_use(self, keep: RetainedLock, use: Use) -> None:
        """As `drop`, for one local user of a retained claim."""
        if self.process == self.runtime.process() and not self.snapshot.ended:
            self._dropped_uses.append((keep, use))
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
            self._outbox[holding.n] = Convert(self.id, holding.n, holding.step, mode)
        self.listener.interrupt()

    def conversion_taken_back(self, command: Convert, reply: Reply, sent_ms: int) -> None:
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
        if holding.ask.max_hold_ms and holding.hold_deadline_ms is None:
            span_ms = holding.ask.max_hold_ms
            holding.hold_deadline_ms = holding.granted_at_ms + span_ms - margin_ms(span_ms)
            self._bounded[holding.n] = holding
            self._look_by(holding.hold_deadline_ms)
            self.listener.interrupt()
        changed = holding.changed
        return changed.set if changed is not None else None

    def _finish(self, holding: Holding, reason: str, by: str = "") -> list[Callable[[], None]]:
        if holding.phase in (OVER, RELEASED):
            return []
        was_held = holding.phase is HELD
        holding.reason = reason
        holding.by = by
        holding.ended_ms = self.runtime.now_ms()
        self._drop(holding, OVER)
        effects = list(holding.on_over) if was_held else []
        if holding.changed is not None:
            effects.append(holding.changed.set)
        return effects

    def _drop(self, holding: Holding, phase: Phase) -> None:
        if holding.phase is WAITING:
            self._out_of_line(holding)
        if holding.phase is not OVER:
            holding.phase = phase
        # Last: while the claim is registered, an interrupted call can still be repeated.
        self._held.pop(holding.n, None)
        self._holdings.pop(holding.n, None)
        if self._bounded:
            self._bounded.pop(holding.n, None)

    def _out_of_line(self, holding: Holding) -> None:
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

    # ── how it stands ─────────────────────────────────────────────────────────────────

    def alive(self) -> bool:
        """Return True if the session is alive by the local clock; end it if it has expired."""
        snapshot = self.snapshot
        if snapshot.ended:
            return False
        if not snapshot.deadline_ms or self.runtime.now_ms() < snapshot.deadline_ms:
            return True
        # A reply to a keep-alive may have arrived since the snapshot was read. Decide under
        # the mutex, so that a lease reported as lost is never reported as held again.
        with self.mutex:
            snapshot = self.snapshot
            now_ms = self.runtime.now_ms()
            if not snapshot.ended and (not snapshot.deadline_ms or now_ms < snapshot.deadline_ms):
                return True
            missed = "renewed" if snapshot.opened else "opened"
            effects = self._end(f"session {self.id} was not {missed} in time")
        carry_out(effects)
        return False

    def state_of(self, holding: Holding) -> LeaseState:
        """Return a lease's state, computed from the clock even if the keeper is delayed."""
        if self.process != self.runtime.process():
            return LOST
        if holding.phase is HELD:
            bound = holding.hold_deadline_ms
            if bound is not None and self.runtime.now_ms() >= bound:
                self.outlive(holding)
            elif self.alive():
                return IS_HELD if self.snapshot.confirmed else LeaseState.UNCERTAIN
        return LeaseState.RELEASED if holding.phase is RELEASED else LOST

    def deadline_of(self, holding: Holding) -> int:
        """Return the local time at which the lease ends unless the session is renewed."""
        deadline_ms = self.snapshot.deadline_ms
        bound = holding.hold_deadline_ms
        return deadline_ms if bound is None else min(deadline_ms, bound)

    def outlive(self, holding: Holding) -> None:
        """End a claim whose max_hold has elapsed, and let the keeper remove it."""
        ask = holding.ask
        with self.mutex:
            if holding.phase is not HELD or holding.hold_deadline_ms is None:
                return
            # The holder may work until it checks the lease, so this is a loss, not a release:
            # admit the successor after the margin, or once the holder has stopped.
            self._not_before_ms[holding.n] = holding.hold_deadline_ms + margin_ms(ask.max_hold_ms)
            self._outbox[holding.n] = Leave(self.id, holding.n, ask.places, ask.lock_delay_ms)
            effects = self._finish(holding, "its max_hold is over")
        carry_out(effects)
        self.listener.interrupt()

    def work_has_stopped(self, holding: Holding) -> None:
        """Record that the holder of a lost lease has stopped, so its successor may enter.

        Finalizers call this too, so it locks no mutex.
        """
        if self._not_before_ms.pop(holding.n, None) is not None:
            self.listener.interrupt()
        if self._working.pop(holding.n, None) is not None and not self._working:
            self.work_stopped.set()

    def work_left_ms(self) -> int:
        """Return how long holders of lost leases may work before the store expires them."""
        if not self._working or self.closing:
            return 0
        return self.snapshot.deadline_ms + margin_ms(self.ttl_ms) - self.runtime.now_ms()

    def renewed(self, sent_ms: int) -> bool:
        """Extend the deadline after a keep-alive sent at `sent_ms`. Return False if too late."""
        with self.mutex:
            snapshot = self.snapshot
            if snapshot.ended:
                return False
            now_ms = self.runtime.now_ms()
            if now_ms < snapshot.deadline_ms:
                # Read before the request left: the store starts counting the TTL
                # somewhere between send and reply, and only the earlier instant is
                # certain to end our leases before the store ends them.
                deadline_ms = sent_ms + self.ttl_ms - margin_ms(self.ttl_ms)
                deadline_ms = max(deadline_ms, snapshot.deadline_ms)
                self.snapshot = snapshot._replace(deadline_ms=deadline_ms, confirmed=True)
                return True
        return self.alive()

    def unconfirmed(self) -> None:
        """Record that a keep-alive failed."""
        with self.mutex:
            self.snapshot = self.snapshot._replace(confirmed=False)

    def confirmed_at_ms(self) -> int:
        """Return the earliest time from which the store may count the current TTL."""
        return self.snapshot.deadline_ms - self.ttl_ms + margin_ms(self.ttl_ms)

    def end_as_told(self, told: Ended) -> None:
        """End the session because the store reported its end."""
        self.ended_in_store = True
        self.end(f"session {self.id} is over: {told.reason}", told.by)

    def end(self, reason: str, by: str = "") -> None:
        """End the session: its leases are lost, and its waiting claims enter again."""
        with self.mutex:
            effects = self._end(reason, by)
        carry_out(effects)

    def _end(self, reason: str, by: str = "") -> list[Callable[[], None]]:
        effects: list[Callable[[], None]] = []
        if not self.snapshot.ended:
            self.snapshot = self.snapshot._replace(
                ended=reason, by=by, ended_ms=self.runtime.now_ms()
            )
            self._working = dict(self._held)
            effects += self.on_end
            effects.append(self.listener.interrupt)
        # Includes the claims that an earlier, interrupted call did not reach.
        for holding in list(self._holdings.values()):
            effects += self._finish(holding, self.snapshot.ended, self.snapshot.by)
            self._holdings.pop(holding.n, None)
        self._outbox.clear()
        self._not_before_ms.clear()
        return effects

    def close(self, on_gone: Callable[[], None] | None = None) -> bool:
        """Let the keeper release everything and stop. Return False if it has already stopped."""
        with self.mutex:
            self.closing = True
            self._not_before_ms.clear()
            if self.gone or not self.keeping:
                return False
            if self.snapshot.ended and not self.was_sent():
                return False  # the keeper has nothing left to send
            if on_gone is not None:
                self.on_gone.append(on_gone)
        self.work_stopped.set()
        self.listener.interrupt()
        return True

    def stopped(self) -> None:
        """Record that the keeper has stopped."""
        self.end("its keeper stopped")
        with self.mutex:
            self.gone = True
            effects = list(self.on_gone)
        self.listener.close()
        carry_out(effects)

    def was_sent(self) -> bool:
        """Return True if an `Open` may have reached the store."""
        return self._opening_sent_ms is not None
