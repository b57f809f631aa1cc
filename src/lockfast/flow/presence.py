"""A client's presence in a store: its claims and its deadline, as the client knows them.

Callers and the keeper meet here. Everything is changed under one mutex that is never
held across I/O; what follows from a change (signals, callbacks) happens after it.
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
"""1/30 of the TTL is kept back for the work to stop in, and for clocks whose rates
differ: the kernel slews a clock by at most 0.05 %, which is far less."""
STOPPING_MS_MAX: Final = 1000
DEADLOCK_AFTER_MS: Final = 1000
IS_HELD, LOST = LeaseState.HELD, LeaseState.LOST


def margin_ms(ttl_ms: int) -> int:
    """How long before the store's end of a lease its holder takes it for lost."""
    return max(1, min(ttl_ms // STOPPING_SHARE, STOPPING_MS_MAX))


class Snapshot(NamedTuple):
    """How the session stands; replaced as a whole."""

    opened: bool = False
    deadline_ms: int = 0
    confirmed: bool = True
    """Whether the last keep-alive was answered."""
    ended: str = ""
    by: str = ""
    ended_ms: int = 0


class _NoWakeListener:
    """Where nothing arrives: a session's listener before it is attached to its store."""

    inbox = process = ""

    async def listen(self, timeout_ms: int | None) -> tuple[Wake, ...]:
        return ()

    def interrupt(self) -> None: ...

    def watch_over(self, n: int, blockers: Sequence[Blocker]) -> None: ...

    def dead(self, blockers: Sequence[Blocker]) -> Sequence[str]:
        return ()

    def close(self) -> None: ...


class Presence:
    """The callers' side of a session."""

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
        """A keeper is to be at work; set by whoever starts it."""
        self.kept = False
        """The keeper has begun."""
        self.gone = False
        """The keeper has stopped."""
        self.on_gone: list[Callable[[], None]] = []
        self.contenders: WeakValueDictionary[int, Holding] = WeakValueDictionary()
        """Attempts at a store without a queue, by number, to be woken."""
        self.look_at_ms: int | None = None
        self.deadlock_after_ms = DEADLOCK_AFTER_MS
        self.deadlock_at_ms: int | None = None
        """When to look for a deadlock next, while something waits."""
        self.events_changed: list[Callable[[], None]] = []
        self.on_end: list[Callable[[], None]] = []
        self._metadata = metadata
        self.ended_in_store = False
        """The store said that the session has ended, so it need not be told."""
        self.work_stopped = runtime.signal()
        """Set when no work goes on under a lease that was lost with the session."""
        self._working: dict[int, Holding] = {}
        """Claims that were held when the session ended, and may still be in use."""
        self._opening_sent_ms: int | None = None
        self._openings = 0
        """How many attempts to open the session may have reached the store."""
        self._holdings: dict[int, Holding] = {}
        self._held: dict[int, Holding] = {}
        """Of these, those that hold: few, where many wait."""
        self._lines: dict[tuple[str, str], dict[int, None]] = {}
        """Of each line we wait in, our claims in the order they entered."""
        self._bounded: dict[int, Holding] = {}
        self._outbox: dict[int, Command] = {}
        self._not_before_ms: dict[int, int] = {}
        """Of some in the outbox: when they may be sent at the earliest."""
        self._dropped: deque[Holding] = deque()
        self._dropped_uses: deque[tuple[RetainedLock, Use]] = deque()
        self._inbox: list[Wake] = []
        self._next_n = 1
        self._looked_up_to = 0

    # ── opening ───────────────────────────────────────────────────────────────────────

    def forsake(self) -> None:
        """Nobody is to use it: its keeper stops, or without one nothing stays open."""
        self.end("it was not begun")
        with self.mutex:
            self.gone = not self.kept
        if self.gone:
            self.listener.close()

    def opening(self) -> Open | None:
        """The command to open the session, or None if the store is known to have it.

        It rides with the first claims. Each one returned is answered by `opened`, or by
        `opening_refused` if it surely did not reach the store.
        """
        if self.snapshot.opened:
            return None
        with self.mutex:
            self._openings += 1
            if self._opening_sent_ms is None:
                # Counted from the first attempt: a later one finds the session open
                # and does not renew it.
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
        """One attempt to open the session surely did not reach the store."""
        with self.mutex:
            self._openings -= 1
            if not self._openings and not self.snapshot.opened and not self.snapshot.ended:
                self._opening_sent_ms = None
                self.snapshot = self.snapshot._replace(deadline_ms=0)

    def end_if_unused(self) -> None:
        """End a session that never reached the store and that nobody uses, with its keeper."""
        with self.mutex:
            unused = self._opening_sent_ms is None and not self._holdings
        if unused:
            self.end("it never reached the store")

    def opened(self) -> None:
        """The store has the session."""
        with self.mutex:
            snapshot = self.snapshot
            if snapshot.opened or snapshot.ended:
                return
            self.snapshot = snapshot._replace(opened=True)
        self.listener.interrupt()

    # ── claims move on ────────────────────────────────────────────────────────────────

    def granted(self, holding: Holding, reply: Granted, sent_ms: int) -> None:
        """The store says the claim holds; `sent_ms` is from before it was asked."""
        with self.mutex:
            if holding.phase is OVER or holding.phase is RELEASED:
                return
            if holding.phase is WAITING:
                self._out_of_line(holding)
            effect = self._hold(holding, reply, sent_ms)
        if effect is not None:
            carry_out([effect])

    def queued(self, holding: Holding, reply: Queued) -> None:
        """The store says the claim waits."""
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
        """The claim is lost, or was taken out of the line."""
        with self.mutex:
            effects = self._finish(holding, reason, by)
        carry_out(effects)

    def forget(self, holding: Holding) -> None:
        """The store never had the claim, or has let go of it."""
        with self.mutex:
            self._drop(holding, RELEASED)
        if holding.on_over:
            carry_out(holding.on_over)

    def abandon(self, holding: Holding, close_ms: int = 0) -> None:
        """Nobody wants the claim any more: the keeper gives it back, whatever became of it."""
        if self.process != self.runtime.process():
            return
        with self.mutex:
            # By what is on record and not by phase, and the outbox first: a caller that is
            # interrupted (Ctrl-C) between any two of these steps comes here once more.
            if holding.n not in self._holdings:
                return
            if not self.snapshot.ended:
                self._outbox[holding.n] = Leave(self.id, holding.n, holding.ask.places, close_ms)
            self._drop(holding, RELEASED)
        carry_out(holding.on_over)
        self.listener.interrupt()

    def drop(self, holding: Holding) -> None:
        """As abandon, but from a finalizer: it may run anywhere, so it takes no mutex."""
        if self.process == self.runtime.process() and not self.snapshot.ended:
            self._dropped.append(holding)
            self.listener.interrupt()

    def drop_use(self, keep: RetainedLock, use: Use) -> None:
        """As drop, for one local user of a kept claim."""
        if self.process == self.runtime.process() and not self.snapshot.ended:
            self._dropped_uses.append((keep, use))
            self.listener.interrupt()

    def begin_conversion(self, holding: Holding, signal: Signal) -> int:
        """Number a conversion; `signal` is set when its claim moves on."""
        with self.mutex:
            holding.step += 1
            holding.changed = signal
            holding.converting = True
            holding.since_ms = self.runtime.now_ms()
            return holding.step

    def cancel_conversion(self, holding: Holding, mode: str) -> None:
        """Have the keeper take back a conversion: from now on the lease has `mode`.

        It may be granted by now, so the caller says which mode that is to be.
        """
        with self.mutex:
            if holding.phase is not HELD or self.snapshot.ended:
                return
            holding.step += 1
            self._outbox[holding.n] = Convert(self.id, holding.n, holding.step, mode)
        self.listener.interrupt()

    def conversion_taken_back(self, command: Convert, reply: Reply, sent_ms: int) -> None:
        """The store has taken a conversion back; one that was granted has a new token."""
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
        # Last, for as long as it is on record the claim is given back if this is cut short.
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
        """Have the listener report if one of these processes dies."""
        try:
            self.listener.watch_over(n, blockers)
        except Exception as error:
            # What others say of their processes may be unreadable. They end by their TTL.
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
        """Whether the session lives by our own clock; the first to see it end says so."""
        snapshot = self.snapshot
        if snapshot.ended:
            return False
        if not snapshot.deadline_ms or self.runtime.now_ms() < snapshot.deadline_ms:
            return True
        # A keep-alive may have been answered since we read: decide under the mutex,
        # so that a lease once seen as lost is never seen as held again.
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
        """How a lease stands, by the clock and not by what a thread has got round to."""
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
        """The local instant to stop at, unless the session is renewed before."""
        deadline_ms = self.snapshot.deadline_ms
        bound = holding.hold_deadline_ms
        return deadline_ms if bound is None else min(deadline_ms, bound)

    def outlive(self, holding: Holding) -> None:
        """The claim has held as long as it may: it is over, and is given back."""
        ask = holding.ask
        with self.mutex:
            if holding.phase is not HELD or holding.hold_deadline_ms is None:
                return
            # Its work may go on until it looks, so this is a loss and no release: the
            # successor is let in after the margin, or once the work has stopped.
            self._not_before_ms[holding.n] = holding.hold_deadline_ms + margin_ms(ask.max_hold_ms)
            self._outbox[holding.n] = Leave(self.id, holding.n, ask.places, ask.lock_delay_ms)
            effects = self._finish(holding, "its max_hold is over")
        carry_out(effects)
        self.listener.interrupt()

    def work_has_stopped(self, holding: Holding) -> None:
        """Nobody works under this lost lease any more, so its successor may be let in.

        Also called by finalizers, so it takes no mutex.
        """
        if self._not_before_ms.pop(holding.n, None) is not None:
            self.listener.interrupt()
        if self._working.pop(holding.n, None) is not None and not self._working:
            self.work_stopped.set()

    def work_left_ms(self) -> int:
        """How long lost leases may still be worked under before the store ends them."""
        if not self._working or self.closing:
            return 0
        return self.snapshot.deadline_ms + margin_ms(self.ttl_ms) - self.runtime.now_ms()

    def renewed(self, sent_ms: int) -> bool:
        """A keep-alive sent at `sent_ms` was answered; False if that came too late."""
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
        """A keep-alive failed."""
        with self.mutex:
            self.snapshot = self.snapshot._replace(confirmed=False)

    def confirmed_at_ms(self) -> int:
        """The instant from which the store counts the present TTL, at the earliest."""
        return self.snapshot.deadline_ms - self.ttl_ms + margin_ms(self.ttl_ms)

    def end_as_told(self, told: Ended) -> None:
        """The store says that the session has ended."""
        self.ended_in_store = True
        self.end(f"session {self.id} is over: {told.reason}", told.by)

    def end(self, reason: str, by: str = "") -> None:
        """The session is over: every lease is lost, every waiting claim enters anew."""
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
        # Also what a call before this one did not get to, because it was interrupted.
        for holding in list(self._holdings.values()):
            effects += self._finish(holding, self.snapshot.ended, self.snapshot.by)
            self._holdings.pop(holding.n, None)
        self._outbox.clear()
        self._not_before_ms.clear()
        return effects

    def close(self, on_gone: Callable[[], None] | None = None) -> bool:
        """Have the keeper give everything back and stop; False if it has stopped already."""
        with self.mutex:
            self.closing = True
            self._not_before_ms.clear()
            if self.gone or not self.keeping:
                return False
            if self.snapshot.ended and not self.was_sent():
                return False  # the keeper has nothing to do but to stop
            if on_gone is not None:
                self.on_gone.append(on_gone)
        self.work_stopped.set()
        self.listener.interrupt()
        return True

    def stopped(self) -> None:
        """The keeper is done."""
        self.end("its keeper stopped")
        with self.mutex:
            self.gone = True
            effects = list(self.on_gone)
        self.listener.close()
        carry_out(effects)

    def was_sent(self) -> bool:
        """Whether the store may know of this session."""
        return self._opening_sent_ms is not None
