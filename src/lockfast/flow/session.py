"""One session: a presence in a store, and what its keeper does to prove and mend it."""

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
    WAKE_WANTED,
    ClaimView,
    Command,
    Gone,
    Granted,
    Leave,
    Queued,
    Wake,
)
from lockfast.flow.holding import ENTERING, HELD, WAITING, Holding, is_orphan, suspects
from lockfast.flow.presence import Presence
from lockfast.ports import Runtime, Signal, Store

RENEWALS_PER_TTL: Final = 3
WAITING_PER_RENEWAL: Final = 64
DEADLOCK_EVERY_MS_MAX: Final = 10_000


class Proof(NamedTuple):
    """What the client believes it has, at the instant a keep-alive is sent."""

    count: int  # type: ignore[assignment]  # hides tuple.count
    checksum: int
    lowest: int
    waiting: tuple[int, ...]
    held: dict[int, int]
    """Tokens of held claims."""
    queued: frozenset[int]


class Session(Presence):
    """A session: its claims, its deadline, and what is still to be given back."""

    def __init__(self, runtime: Runtime, ttl_ms: int, owner: str, metadata: str) -> None:
        super().__init__(runtime, ttl_ms, owner, metadata)
        self.siblings: Callable[[], list[Session]] = lambda: [self]
        """All sessions of the client: an actor may hold in one and wait in another."""

    def attach(self, store: Store) -> None:
        """Be where the store's wakes arrive."""
        self.listener = store.wake_listener(self.id, self._deliver)
        self.keeping = True

    def register(self, holding: Holding) -> bool:
        """Give a claim its number, before it is sent; False if the session is over."""
        with self.mutex:
            if self.closing or self.snapshot.ended:
                return False
            holding.session = self
            holding.may_be_stored = False
            holding.n = n = self._next_n
            if holding.phase is not ENTERING:
                # It was granted before, in a session that is over.
                holding.phase = ENTERING
                holding.hold_deadline_ms = holding.ended_ms = None
            self._next_n = n + 1
            self._holdings[n] = holding
            return True

    # ── what the store says ───────────────────────────────────────────────────────────

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
        if wake.what == WAKE_FREE:
            contender = self.contenders.get(wake.n)
            signal = contender.changed if contender is not None else None
            if signal is not None:
                signal.set()
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
        self.listener.interrupt()

    def wakes_missed(self) -> None:
        """The listener has just connected: what was granted to a claim before, it did not hear."""
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

    # ── what is to be given back ──────────────────────────────────────────────────────

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

    def owes(self) -> bool:
        """Whether something is to be given back."""
        return bool(self._outbox or self._dropped or self._dropped_uses)

    def next_in_outbox(self) -> tuple[int, Command] | None:
        """The next that may be sent now."""
        if not self._outbox:
            return None
        with self.mutex:
            now_ms = self.runtime.now_ms() if self._not_before_ms else 0
            for n, command in self._outbox.items():
                if self._not_before_ms.get(n, 0) <= now_ms:
                    return n, command
        return None

    def outbox_due_ms(self) -> int | None:
        """When the next in the outbox may be sent; None if it is empty."""
        with self.mutex:
            return min((self._not_before_ms.get(n, 0) for n in self._outbox), default=None)

    def given_back(self, n: int, command: Command) -> None:
        with self.mutex:
            if self._outbox.get(n) is command:
                del self._outbox[n]
                self._not_before_ms.pop(n, None)

    def has_bounded(self) -> bool:
        """Whether a claim of ours ends by its max_hold."""
        return bool(self._bounded)

    def outlived(self, now_ms: int) -> list[Holding]:
        """Claims whose max_hold is over."""
        with self.mutex:
            return [
                holding
                for holding in self._bounded.values()
                if holding.hold_deadline_ms is not None and holding.hold_deadline_ms <= now_ms
            ]

    # ── deadlocks ─────────────────────────────────────────────────────────────────────

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
        if not actors:
            return []
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
