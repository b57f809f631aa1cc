"""A client's presence in a store, as the client knows it.

Callers and the keeper meet here. Everything is changed under one mutex that is never
held across I/O; what follows from a change (signals, callbacks) happens after it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Final, NamedTuple

from lockfast.core.checksum import checksum_of
from lockfast.core.commands import (
    HOLDING,
    REVOKED,
    WAKE_GRANTED,
    WAKE_WANTED,
    Blocker,
    ClaimView,
    Command,
    Convert,
    Gone,
    Granted,
    Leave,
    Open,
    Queued,
    Reply,
    Wake,
)
from lockfast.flow.holding import Holding, LeaseState, Phase, is_orphan, suspects
from lockfast.flow.log import logger
from lockfast.ports import Ear, Runtime, Signal, Store

if TYPE_CHECKING:
    from lockfast.flow.retained import Keep, Use

STOPPING_SHARE: Final = 30
"""1/30 of the TTL is kept back for the work to stop in, and for clocks whose rates
differ: the kernel slews a clock by at most 0.05 %, which is far less."""
STOPPING_MS_MAX: Final = 1000

RENEWALS_PER_TTL: Final = 3
WAITING_PER_RENEWAL: Final = 64
DEADLOCK_AFTER_MS: Final = 1000
DEADLOCK_EVERY_MS_MAX: Final = 10_000
ENTERING, WAITING, HELD = Phase.ENTERING, Phase.WAITING, Phase.HELD
OVER, RELEASED = Phase.OVER, Phase.RELEASED
LOST, IS_HELD = LeaseState.LOST, LeaseState.HELD
"""To look them up in their classes takes its time, and every use of a lease does."""
FORKED: Final = "the process was forked and its leases stay with the parent"


def margin_ms(ttl_ms: int) -> int:
    """How long before the store's end of a lease its holder takes it for lost."""
    return max(1, min(ttl_ms // STOPPING_SHARE, STOPPING_MS_MAX))


def carry_out(effects: Sequence[Callable[[], None]]) -> None:
    """Do what follows from a change: all of it, whatever becomes of one part."""
    for at, effect in enumerate(effects):
        try:
            effect()
        except Exception as error:
            # There may be no thread to be had for a callback; the others are told all the same.
            logger.warning("%r failed: %r", effect, error)
        except BaseException:
            carry_out(effects[at + 1 :])
            raise


def without(
    callbacks: tuple[Callable[[], None], ...], callback: Callable[[], None]
) -> tuple[Callable[[], None], ...]:
    """All but one; those of a lease are few."""
    rest = list(callbacks)
    if callback in rest:
        rest.remove(callback)
    return tuple(rest)


class Snapshot(NamedTuple):
    """How the session stands; replaced as a whole."""

    opened: bool = False
    deadline_ms: int = 0
    confirmed: bool = True
    """Whether the last keep-alive was answered."""
    ended: str = ""
    by: str = ""
    ended_ms: int = 0


class Proof(NamedTuple):
    """What the client believes it has, at the instant a keep-alive is sent."""

    count: int  # type: ignore[assignment]  # hides tuple.count
    checksum: int
    lowest: int
    waiting: tuple[int, ...]
    held: dict[int, int]
    """Tokens of held claims."""
    queued: frozenset[int]


class _NoEar:
    """Where nothing arrives: a session's ear before it is attached to its store."""

    inbox = process = ""

    async def listen(self, timeout_ms: int | None) -> tuple[Wake, ...]:
        return ()

    def poke(self) -> None: ...

    def watch_over(self, n: int, blockers: Sequence[Blocker]) -> None: ...

    def close(self) -> None: ...


class Session:
    """One session: its claims, its deadline, and what is still to be given back."""

    def __init__(self, runtime: Runtime, ttl_ms: int, owner: str, metadata: str):
        self.id = runtime.unique()
        self.ttl_ms = ttl_ms
        self.owner = owner
        self.runtime = runtime
        self.process = runtime.process()
        self.ear: Ear = _NoEar()
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
        self.look_at_ms: int | None = None
        self.deadlock_after_ms = DEADLOCK_AFTER_MS
        self.deadlock_at_ms: int | None = None
        """When to look for a deadlock next, while something waits."""
        self.siblings: Callable[[], list[Session]] = lambda: [self]
        """All sessions of the client: an actor may hold in one and wait in another."""
        self.events_changed: list[Callable[[], None]] = []
        self.on_end: list[Callable[[], None]] = []
        self._metadata = metadata
        self._opening_sent_ms: int | None = None
        self._holdings: dict[int, Holding] = {}
        self._held: dict[int, Holding] = {}
        """Of these, those that hold: few, where many wait."""
        self._lines: dict[tuple[str, str], dict[int, None]] = {}
        """Of each line we wait in, our claims in the order they entered."""
        self._bounded: dict[int, Holding] = {}
        self._outbox: dict[int, Command] = {}
        self._dropped: deque[Holding] = deque()
        self._dropped_uses: deque[tuple[Keep, Use]] = deque()
        self._inbox: list[Wake] = []
        self._next_n = 1
        self._looked_up_to = 0

    # ── opening ──────────────────────────────────────────────────────────────────────

    def attach(self, store: Store) -> None:
        """Be where the store's wakes arrive."""
        self.ear = store.ear(self.id, self._deliver)
        self.keeping = True

    def forsake(self) -> None:
        """Nobody is to use it: its keeper stops, or without one nothing stays open."""
        self.end("it was not begun")
        with self.mutex:
            self.gone = not self.kept
        if self.gone:
            self.ear.close()

    def register(self, holding: Holding) -> bool:
        """Give a claim its number, before it is sent; False if the session is over."""
        with self.mutex:
            if self.closing or self.snapshot.ended:
                return False
            holding.session = self
            holding.n = n = self._next_n
            if holding.phase is not ENTERING:
                # It was granted before, in a session that is over.
                holding.phase = ENTERING
                holding.hold_deadline_ms = holding.ended_ms = None
            self._next_n = n + 1
            self._holdings[n] = holding
            return True

    def opening(self) -> Open | None:
        """To ride with a command as long as the session is not known to be open."""
        if self.snapshot.opened:
            return None
        with self.mutex:
            if self._opening_sent_ms is None:
                # Counted from the first attempt: a later one finds the session open
                # and does not renew it.
                self._opening_sent_ms = self.runtime.now_ms()
        return Open(
            self.id, self.ttl_ms, self.owner, self._metadata, self.ear.inbox, self.ear.process
        )

    def opened(self) -> None:
        """The store has the session."""
        with self.mutex:
            snapshot = self.snapshot
            if snapshot.opened or snapshot.ended:
                return
            sent_ms = self._opening_sent_ms
            assert sent_ms is not None
            self.snapshot = snapshot._replace(
                opened=True, deadline_ms=sent_ms + self.ttl_ms - margin_ms(self.ttl_ms)
            )
        self.ear.poke()

    # ── claims move on ───────────────────────────────────────────────────────────────

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
        with self.mutex:
            if holding.phase is ENTERING:
                holding.phase = WAITING
                holding.since_ms = now_ms
                for place in holding.ask.places:
                    self._lines.setdefault(place[:2], {})[holding.n] = None
            elif holding.phase is not WAITING and not holding.converting:
                return
            sooner = (holding.converting or self._is_foremost(holding)) and self._look_by(
                now_ms + reply.look_ms
            )
            look_ms = now_ms + self.deadlock_after_ms
            if self.deadlock_at_ms is None or look_ms < self.deadlock_at_ms:
                self.deadlock_at_ms = look_ms
                sooner = True
            self.ear.watch_over(holding.n, reply.ahead)
        if sooner:
            self.ear.poke()

    def over(self, holding: Holding, reason: str, by: str = "") -> None:
        """The claim is lost, or was taken out of the line."""
        with self.mutex:
            effects = self._finish(holding, reason, by)
        carry_out(effects)

    def forget(self, holding: Holding) -> None:
        """The store never had the claim, or has let go of it."""
        with self.mutex:
            effects = self._let_go(holding)
        if effects:
            carry_out(effects)

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
            effects = self._let_go(holding)
        carry_out(effects)
        self.ear.poke()

    def drop(self, holding: Holding) -> None:
        """As abandon, but from a finalizer: it may run anywhere, so it takes no mutex."""
        if self.process == self.runtime.process() and not self.snapshot.ended:
            self._dropped.append(holding)
            self.ear.poke()

    def drop_use(self, keep: Keep, use: Use) -> None:
        """As drop, for one local user of a kept claim."""
        if self.process == self.runtime.process() and not self.snapshot.ended:
            self._dropped_uses.append((keep, use))
            self.ear.poke()

    def look_over(self, n: int, reply: Granted | Queued | Gone, sent_ms: int) -> None:
        """Take over how a claim of ours stands in the store."""
        holding = self._holdings.get(n)
        if holding is None or holding.leaving:
            return
        if isinstance(reply, Granted):
            # While this was on its way its holder may have converted it. What a look can
            # bring that is news to a holder is the writer's mode, with a higher token.
            if holding.phase is not HELD or reply.token > holding.token:
                self.granted(holding, reply, sent_ms)
            elif holding.changed is not None:
                holding.changed.set()  # whoever converts it asks for itself
            if reply.wanted:
                self.wanted(n)
        elif isinstance(reply, Queued):
            self.queued(holding, reply)
        else:
            self.over(holding, reply.reason, reply.by)
            # The store keeps word of what it took away until it is answered.
            self._give_back(n)

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
        self.ear.poke()

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
            self.ear.watch_over(holding.n, ())

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
            self.ear.poke()
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

    def _let_go(self, holding: Holding) -> Sequence[Callable[[], None]]:
        self._drop(holding, RELEASED)
        return holding.on_over

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
        self.ear.watch_over(holding.n, ())

    def _is_foremost(self, holding: Holding) -> bool:
        return any(
            next(iter(self._lines[place[:2]]), None) == holding.n for place in holding.ask.places
        )

    def _look_by(self, at_ms: int) -> bool:
        if self.look_at_ms is None or at_ms < self.look_at_ms:
            self.look_at_ms = at_ms
            return True
        return False

    # ── how it stands ────────────────────────────────────────────────────────────────

    def alive(self) -> bool:
        """Whether the session lives by our own clock; the first to see it end says so."""
        snapshot = self.snapshot
        if snapshot.ended:
            return False
        if not snapshot.opened or self.runtime.now_ms() < snapshot.deadline_ms:
            return True
        # A keep-alive may have been answered since we read: decide under the mutex,
        # so that a lease once seen as lost is never seen as held again.
        with self.mutex:
            snapshot = self.snapshot
            now_ms = self.runtime.now_ms()
            if not snapshot.ended and now_ms < snapshot.deadline_ms:
                return True
            effects = self._end(f"session {self.id} was not renewed in time")
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
        with self.mutex:
            effects = self._finish(holding, "its max_hold is over")
            if effects or holding.phase is OVER:
                # Its work may go on until it looks: a loss and no release.
                ask = holding.ask
                self._outbox[holding.n] = Leave(self.id, holding.n, ask.places, ask.lock_delay_ms)
        carry_out(effects)

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
                self.snapshot = snapshot._replace(
                    deadline_ms=max(deadline_ms, snapshot.deadline_ms), confirmed=True
                )
                return True
        return self.alive()

    def unconfirmed(self) -> None:
        """A keep-alive failed."""
        with self.mutex:
            self.snapshot = self.snapshot._replace(confirmed=False)

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
            effects += self.on_end
            effects.append(self.ear.poke)
        # Also what a call before this one did not get to, because it was interrupted.
        for holding in list(self._holdings.values()):
            effects += self._finish(holding, self.snapshot.ended, self.snapshot.by)
            self._holdings.pop(holding.n, None)
        self._outbox.clear()
        return effects

    def close(self, on_gone: Callable[[], None] | None = None) -> bool:
        """Have the keeper give everything back and stop; False if it has stopped already."""
        with self.mutex:
            self.closing = True
            if self.gone or not self.keeping:
                return False
            if on_gone is not None:
                self.on_gone.append(on_gone)
        self.ear.poke()
        return True

    def stopped(self) -> None:
        """The keeper is done."""
        self.end("its keeper stopped")
        with self.mutex:
            self.gone = True
            effects = list(self.on_gone)
        self.ear.close()
        carry_out(effects)

    def was_sent(self) -> bool:
        """Whether the store may know of this session."""
        return self._opening_sent_ms is not None

    # ── for the keeper ───────────────────────────────────────────────────────────────

    def proof(self) -> Proof:
        """What we believe we have, to be checked by the store."""
        self.take_back_orphans()
        with self.mutex:
            held: dict[int, int] = {}
            queued: list[int] = []
            overlooked: list[Signal] = []
            for n, holding in self._holdings.items():
                if holding.phase is HELD:
                    held[n] = holding.token
                    if holding.changed is not None and not holding.converting:
                        overlooked.append(holding.changed)
                elif holding.phase is WAITING:
                    queued.append(n)
            foremost = {next(iter(line)) for line in self._lines.values() if line}
            foremost |= {n for n in held if self._needs_look(self._holdings[n])}
            lowest = min(next(iter(self._holdings), self._next_n), *self._outbox, self._next_n)
            self.look_at_ms = None
            for bounded in self._bounded.values():
                if bounded.hold_deadline_ms is not None:
                    self._look_by(bounded.hold_deadline_ms)
        for signal in overlooked:
            # Whoever noted this grant may have been interrupted before it could tell.
            signal.set()
        looked = sorted(foremost)
        if len(looked) > WAITING_PER_RENEWAL:
            # Not all fit into one keep-alive: the next goes on where this one stops.
            after = [n for n in looked if n > self._looked_up_to] or looked
            looked = after[:WAITING_PER_RENEWAL]
            self._looked_up_to = looked[-1]
        claims = [*held.items(), *((n, 0) for n in queued)]
        return Proof(
            len(claims),
            checksum_of(claims),
            lowest,
            tuple(looked),
            held,
            frozenset(queued),
        )

    @staticmethod
    def _needs_look(holding: Holding) -> bool:
        return holding.converting or holding.on_wanted is not None

    def reconcile(self, proof: Proof, stored: Iterable[ClaimView], sent_ms: int) -> None:
        """Take over what the store has where it differs from what we believed.

        Only claims that stood still since `proof` are judged: what is on its way
        explains itself when its answer arrives.
        """
        views = {view.n: view for view in stored}
        for n, token in proof.held.items():
            holding = self._holdings.get(n)
            if holding is None or holding.phase is not HELD or holding.token != token:
                continue
            if holding.leaving or n in self._outbox:
                continue
            view = views.get(n)
            if view is None:
                self.over(holding, "the store has no record of it")
            elif view.state == REVOKED:
                self.over(holding, view.reason, view.by)
                self._give_back(n)
            elif view.state == HOLDING and view.token != token and holding.changed is not None:
                holding.changed.set()
            elif view.state != HOLDING or view.token != token:
                self.over(holding, "the store granted it anew")
        for n in proof.queued:
            holding = self._holdings.get(n)
            if holding is None or holding.phase is not WAITING:
                continue
            view = views.get(n)
            if view is None:
                self.over(holding, "the store has no record of it")
            elif view.state == HOLDING:
                self.granted(holding, Granted(view.token, view.for_ms), sent_ms)
            elif view.state == REVOKED:
                self.over(holding, view.reason, view.by)
                self._give_back(n)
        for n in views.keys() - self._holdings.keys():
            if n < self._next_n:
                self._give_back(n)

    def _give_back(self, n: int) -> None:
        with self.mutex:
            if n not in self._holdings and not self.snapshot.ended:
                self._outbox.setdefault(n, Leave(self.id, n))

    def take_back_dropped(self) -> None:
        """Abandon what finalizers dropped."""
        if not self._dropped and not self._dropped_uses:
            return
        with suppress(IndexError):  # another thread may be at it too
            while True:
                self.abandon(self._dropped.popleft())
        with suppress(IndexError):
            while True:
                keep, use = self._dropped_uses.popleft()
                keep.drop(use)

    def take_back_orphans(self) -> None:
        """Give back claims whose lease is gone, though its finalizer never told us.

        A finalizer is a function like any other: a signal may strike before its first line.
        """
        self.take_back_dropped()
        for holding in self.holdings():
            if is_orphan(holding):
                self.abandon(holding)

    def next_in_outbox(self) -> tuple[int, Command] | None:
        with self.mutex:
            return next(iter(self._outbox.items()), None)

    def given_back(self, n: int, command: Command) -> None:
        with self.mutex:
            if self._outbox.get(n) is command:
                del self._outbox[n]

    def outlived(self, now_ms: int) -> list[Holding]:
        """Claims whose max_hold is over."""
        with self.mutex:
            return [
                holding
                for holding in self._bounded.values()
                if holding.hold_deadline_ms is not None and holding.hold_deadline_ms <= now_ms
            ]

    def start_of_deadlock_look(self) -> list[tuple[str, str]]:
        """Where to look for deadlocks: at what suspects of ours hold and wait for."""
        now_ms = self.runtime.now_ms()
        known = [holding for session in self.siblings() for holding in session.holdings()]
        found = suspects(known)
        overdue = [h for h in found if self._deadlock_look_due_ms(h) <= now_ms]
        for holding in overdue:
            holding.looked_ms = now_ms
        actors = {holding.actor for holding in overdue}
        with self.mutex:
            waiting = bool(self._lines) or any(h.converting for h in self._holdings.values())
            if waiting:
                after_ms = self.deadlock_after_ms
                next_ms = min(map(self._deadlock_look_due_ms, found), default=now_ms + after_ms)
                self.deadlock_at_ms = max(now_ms + 1 + after_ms // 10, next_ms)
            else:
                self.deadlock_at_ms = None
        return [
            (place.kind, place.name)
            for holding in known
            if holding.actor in actors
            for place in holding.ask.places
        ]

    def _deadlock_look_due_ms(self, holding: Holding) -> int:
        """When to look whether a claim that waits is part of a deadlock, first or again."""
        first_ms = holding.since_ms + self.deadlock_after_ms
        if holding.looked_ms < first_ms:
            return first_ms
        # It was none then, and only something that came later can have made it one.
        every_ms = max(self.deadlock_after_ms, 2 * (holding.looked_ms - holding.since_ms))
        return holding.looked_ms + min(every_ms, DEADLOCK_EVERY_MS_MAX)

    def take_inbox(self) -> list[Wake]:
        with self.mutex:
            taken, self._inbox = self._inbox, []
            return taken

    def holdings(self) -> list[Holding]:
        with self.mutex:
            return list(self._holdings.values())

    def held_by(self, actor: str) -> list[Holding]:
        """What an actor of ours holds, and has not let go of."""
        self.take_back_dropped()
        with self.mutex:
            found = [holding for holding in self._held.values() if holding.actor == actor]
        orphans = [holding for holding in found if is_orphan(holding)]
        for holding in orphans:
            self.abandon(holding)
        return [holding for holding in found if holding.phase is HELD]

    def wanted(self, n: int) -> None:
        """Others wait for a claim of ours."""
        holding = self._holdings.get(n)
        if holding is not None:
            holding.wanted = True
            if holding.on_wanted is not None:
                holding.on_wanted()

    def _deliver(self, wake: Wake) -> None:
        """A step of this process changed one of our claims: no need to look first."""
        if wake.session != self.id:
            # An inbox may be a mere port, and may have been that of a dead session before.
            return
        if wake.what == WAKE_WANTED:
            self.wanted(wake.n)
            return
        if wake.what == WAKE_GRANTED:
            holding = self._holdings.get(wake.n)
            # The bound of max_hold counts from the grant, and we may have been stopped
            # since: only a look tells how long ago that was.
            bounded = holding is not None and holding.ask.max_hold_ms
            if holding is not None and holding.phase is WAITING and not bounded:
                self.granted(holding, Granted(wake.token), self.runtime.now_ms())
                return
        with self.mutex:
            self._inbox.append(wake)
        self.ear.poke()
