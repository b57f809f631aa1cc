"""A session: its life and its claims, plus the methods that its keeper uses."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Final, NamedTuple

from lockfast.core.checksum import checksum_of
from lockfast.core.commands import (
    HOLDING,
    REVOKED,
    WAKE_FREE,
    WAKE_GRANTED,
    WAKE_LOOK,
    WAKE_WANTED,
    ClaimView,
    Command,
    Gone,
    Granted,
    Leave,
    Queued,
    Wake,
)
from lockfast.core.reasons import NO_RECORD
from lockfast.flow.holding import ENTERING, HELD, WAITING, Holding, is_orphan, suspects
from lockfast.flow.session_claims import SessionClaims
from lockfast.flow.session_life import KeeperState
from lockfast.ports import Runtime, Signal, Store

RENEWALS_PER_TTL: Final = 3
WAITING_PER_RENEWAL: Final = 64
BEHIND_OTHERS_PER_RENEWAL: Final = 16
DEADLOCK_EVERY_MS_MAX: Final = 10_000


class Proof(NamedTuple):
    """The client's view of its claims when a keep-alive is sent, for the store to compare."""

    count: int  # type: ignore[assignment]  # hides tuple.count
    checksum: int
    lowest: int
    waiting: tuple[int, ...]
    held: dict[int, int]
    """The tokens of the held claims, by claim number."""
    queued: frozenset[int]


class Turns:
    """Takes turns with more claims than fit into one keep-alive."""

    def __init__(self, portion: int) -> None:
        self._portion = portion
        self._last = 0

    def next(self, numbers: list[int]) -> list[int]:
        """Return all of these claims, or the portion that follows the one returned last."""
        if len(numbers) <= self._portion:
            return numbers
        portion = ([n for n in numbers if n > self._last] or numbers)[: self._portion]
        self._last = portion[-1]
        return portion


class Session(SessionClaims):
    """A session: its claims, its deadline, and its pending releases."""

    def __init__(self, runtime: Runtime, ttl_ms: int, owner: str, metadata: str) -> None:
        super().__init__(runtime, ttl_ms, owner, metadata)
        self.siblings: Callable[[], list[Session]] = lambda: [self]
        """All sessions of the client: an actor may hold in one and wait in another."""
        self._turns_of_foremost = Turns(WAITING_PER_RENEWAL)
        self._turns_of_others = Turns(BEHIND_OTHERS_PER_RENEWAL)

    def attach(self, store: Store) -> None:
        """Create the listener that receives the store's wakes."""
        self.listener = store.wake_listener(self.id, self._deliver)
        self.keeper = KeeperState.STARTING

    def register(self, holding: Holding) -> bool:
        """Assign a claim its number before it is sent. Return False if the session has ended."""
        with self.mutex:
            if self.closing or self.snapshot.ended:
                return False
            holding.session = self
            holding.may_be_stored = False
            holding.n = n = self._next_n
            if holding.phase is not ENTERING:
                # The claim was granted before, in a session that has ended.
                holding.phase = ENTERING
                holding.hold_deadline_ms = holding.lost_ms = None
            self._next_n = n + 1
            self._holdings[n] = holding
            return True

    # ── what the store says ───────────────────────────────────────────────────────────

    def apply_view(self, n: int, reply: Granted | Queued | Gone, sent_ms: int) -> None:
        """Apply the store's view of one of our claims."""
        holding = self._holdings.get(n)
        if holding is None or holding.leaving:
            return
        if isinstance(reply, Granted):
            # The holder may have converted the claim while this reply was in flight. For a
            # held claim only a higher token is news: it comes with the writer's mode.
            if holding.phase is not HELD or reply.token > holding.token:
                self.granted(holding, reply, sent_ms)
            elif holding.changed is not None:
                holding.changed.set()  # the converting caller asks the store again
            if reply.wanted:
                self.wanted(n)
        elif isinstance(reply, Queued):
            self.queued(holding, reply)
        else:
            self.lost(holding, reply.reason, reply.by)
            # The store keeps the record of a revoked claim until it receives `Leave`.
            self._leave_later(n)

    def proof(self) -> Proof:
        """Return our view of the session's claims, for the store to compare."""
        self.release_orphans()
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
            # Numbers are not the order of a queue: a later claim of ours may be ahead, by its
            # priority or because the store's clock was set back. Only that claim shows whether
            # the session ahead of it still renews itself.
            others = [n for n in queued if n not in foremost and self._is_behind_others(n)]
            lowest = min(
                next(iter(self._holdings), self._next_n), *self._outbox.commands, self._next_n
            )
            self.look_at_ms = None
            for bounded in self._bounded.values():
                if bounded.hold_deadline_ms is not None:
                    self._look_by(bounded.hold_deadline_ms)
        for signal in overlooked:
            # The thread that recorded the grant may have been interrupted before signalling.
            signal.set()
        looked = self._turns_of_foremost.next(sorted(foremost))
        looked += self._turns_of_others.next(others)
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

    def _is_behind_others(self, n: int) -> bool:
        """Return True if a claim of another session was directly ahead when last reported."""
        return any(blocker.session != self.id for blocker in self._holdings[n].ahead)

    def waiting(self) -> frozenset[int]:
        """Return the numbers of our claims that wait or convert."""
        with self.mutex:
            return frozenset(
                n for n, h in self._holdings.items() if h.phase is WAITING or h.converting
            )

    def reconcile(self, proof: Proof, stored: Iterable[ClaimView], sent_ms: int) -> None:
        """Correct our view of the claims where it differs from the store's.

        Skips claims that changed since `proof`: replies in flight will update them.
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
                self.lost(holding, NO_RECORD)
            elif view.state == REVOKED:
                self.lost(holding, view.reason, view.by)
                self._leave_later(n)
            elif view.state == HOLDING and view.token != token and holding.changed is not None:
                holding.changed.set()
            elif view.state != HOLDING or view.token != token:
                self.lost(holding, "the store granted the claim again, with another token")
        for n in proof.queued:
            holding = self._holdings.get(n)
            if holding is None or holding.phase is not WAITING:
                continue
            view = views.get(n)
            if view is None:
                self.lost(holding, NO_RECORD)
            elif view.state == HOLDING and not holding.ask.max_hold_ms:
                self.granted(holding, Granted(view.token, view.for_ms), sent_ms)
            elif view.state == HOLDING:
                # Only a look tells how long ago it was granted; this view may be off.
                self._deliver(Wake("", self.id, n, WAKE_LOOK))
            elif view.state == REVOKED:
                self.lost(holding, view.reason, view.by)
                self._leave_later(n)
        for n in views.keys() - self._holdings.keys():
            if n < self._next_n:
                self._leave_later(n)

    def wanted(self, n: int) -> None:
        """Record that others wait for one of our retained claims."""
        holding = self._holdings.get(n)
        if holding is not None:
            holding.wanted = True
            if holding.on_wanted is not None:
                holding.on_wanted()

    def _deliver(self, wake: Wake) -> None:
        """Apply a wake from a step of this process, which needs no check with the store."""
        if wake.session != self.id:
            # An inbox may be a port number that a dead session used before.
            return
        if wake.what == WAKE_WANTED:
            self.wanted(wake.n)
            return
        if wake.what == WAKE_FREE:
            contender = self.contenders.get(wake.n)
            signal = contender.changed if contender is not None else None
            if signal is not None:
                signal.set()
            return
        if wake.what == WAKE_GRANTED:
            holding = self._holdings.get(wake.n)
            # max_hold counts from the grant, and this process may have been stopped since.
            # Only the store knows how long ago the grant was.
            bounded = holding is not None and holding.ask.max_hold_ms
            if holding is not None and holding.phase is WAITING and not bounded:
                self.granted(holding, Granted(wake.token), self.runtime.now_ms())
                return
        with self.mutex:
            self._inbox.append(wake)
        self.listener.interrupt()

    def wakes_missed(self) -> None:
        """Handle a listener that has just connected and may have missed earlier grants."""
        with self.mutex:
            for holding in self._holdings.values():
                if holding.phase is ENTERING:
                    holding.look_when_queued = True

    def take_inbox(self) -> list[Wake]:
        if not self._inbox:
            return []
        with self.mutex:
            taken, self._inbox = self._inbox, []
            return taken

    # ── what the keeper sends ──────────────────────────────────────────────────────

    def _leave_later(self, n: int) -> None:
        with self.mutex:
            if n not in self._holdings and not self.snapshot.ended:
                self._outbox.add(n, Leave(self.id, n))

    def release_finalized(self) -> None:
        """Release the claims whose finalizers have run."""
        if not self._finalized and not self._finalized_uses:
            return
        with suppress(IndexError):  # another thread may empty it concurrently
            while True:
                self.release_later(self._finalized.popleft())
        with suppress(IndexError):
            while True:
                lock, use = self._finalized_uses.popleft()
                lock.release_later(use)

    def release_orphans(self) -> None:
        """Release claims whose lease was collected without running its finalizer to the end.

        A signal handler may raise before the finalizer's first line.
        """
        self.release_finalized()
        for holding in self.holdings():
            if is_orphan(holding):
                self.release_later(holding)

    def has_pending(self) -> bool:
        """Return True if a release is pending."""
        return bool(self._outbox or self._finalized or self._finalized_uses)

    def next_in_outbox(self) -> tuple[int, Command] | None:
        """Return the next pending command that may be sent now."""
        if not self._outbox:
            return None
        with self.mutex:
            return self._outbox.next(self.runtime.now_ms())

    def release_first(self, n: int) -> bool:
        """Let the keeper release a claim before others. Return False if we have not left it."""
        with self.mutex:
            return self._outbox.release_first(n)

    def outbox_due_ms(self) -> int | None:
        """Return when the next pending command may be sent; None if there is none."""
        with self.mutex:
            return self._outbox.due_ms()

    def sent(self, n: int, command: Command) -> None:
        """Record that the store has replied to a pending command."""
        with self.mutex:
            self._outbox.sent(n, command)

    def has_bounded(self) -> bool:
        """Return True if one of our held claims has a max_hold."""
        return bool(self._bounded)

    def past_max_hold(self, now_ms: int) -> list[Holding]:
        """Return the claims whose max_hold has elapsed."""
        with self.mutex:
            return [
                holding
                for holding in self._bounded.values()
                if holding.hold_deadline_ms is not None and holding.hold_deadline_ms <= now_ms
            ]

    # ── deadlocks ─────────────────────────────────────────────────────────────────────

    def start_of_deadlock_look(self) -> list[tuple[str, str]]:
        """Return the resources that our suspect claims hold or wait for: a search starts there."""
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
        if not actors:
            return []
        return [
            (place.kind, place.name)
            for holding in known
            if holding.actor in actors
            for place in holding.ask.places
        ]

    def _deadlock_look_due_ms(self, holding: Holding) -> int:
        """Return when a waiting claim is next due for a deadlock search."""
        first_ms = holding.since_ms + self.deadlock_after_ms
        if holding.looked_ms < first_ms:
            return first_ms
        # The last search found no deadlock, so double the interval: only a later claim can
        # have created one.
        every_ms = max(self.deadlock_after_ms, 2 * (holding.looked_ms - holding.since_ms))
        return holding.looked_ms + min(every_ms, DEADLOCK_EVERY_MS_MAX)

    def holdings(self) -> list[Holding]:
        with self.mutex:
            return list(self._holdings.values())

    def held_by(self, actor: str) -> list[Holding]:
        """Return the claims that an actor holds and is not releasing."""
        self.release_finalized()
        with self.mutex:
            found = [holding for holding in self._held.values() if holding.actor == actor]
        orphans = [holding for holding in found if is_orphan(holding)]
        for holding in orphans:
            self.release_later(holding)
        return [holding for holding in found if holding.phase is HELD]
