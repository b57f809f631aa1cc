"""The life of a session in its client: when it opens, until when it is alive, how it ends.

All changes are made under one mutex, which is never held across I/O. The signals and
callbacks that follow a change run after the mutex is released.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum, auto
from typing import Final, NamedTuple

from lockfast.core.commands import Blocker, Ended, Open, Wake
from lockfast.core.reasons import (
    EXPIRED,
    LOST_ENDED,
    LOST_EXPIRED,
    LOST_KEEPER,
    LOST_REVOKED,
)
from lockfast.flow.effects import carry_out
from lockfast.flow.emitter import Emitter
from lockfast.ports import Runtime, WakeListener

STOPPING_SHARE: Final = 30
"""The client declares a lease lost 1/30 of the TTL before the store expires it. Holders use
this margin to stop. It also covers differing clock rates: the kernel slews by at most 0.05 %."""
STOPPING_MS_MAX: Final = 1000


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


class KeeperState(Enum):
    """Whether a session has a keeper, its background job."""

    NONE = auto()
    STARTING = auto()
    RUNNING = auto()
    STOPPED = auto()


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


class SessionLife:
    """A session without its claims: its opening, its deadline, its keeper's state, its end."""

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
        self.keeper = KeeperState.NONE
        self.on_keeper_stopped: list[Callable[[], None]] = []
        self.on_end: list[Callable[[], None]] = []
        self.emitter = Emitter(runtime, "")
        """Where events go; the client replaces it by its own."""
        self.why = ""
        """Why the session ended, in one word: one of the LOST_ constants."""
        self._metadata = metadata
        self.ended_in_store = False
        """The store reported the end of the session, so the keeper need not end it there."""
        self._opening_sent_ms: int | None = None
        self._openings = 0
        """The number of `Open` commands that may have reached the store."""

    # ── opening ───────────────────────────────────────────────────────────────────────

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

    def opened(self) -> None:
        """Record that the store has opened the session."""
        with self.mutex:
            snapshot = self.snapshot
            if snapshot.opened or snapshot.ended:
                return
            self.snapshot = snapshot._replace(opened=True)
        if self.emitter.observer is not None:
            from lockfast.flow import observed

            observed.report_opened(self)
        self.listener.interrupt()

    def was_sent(self) -> bool:
        """Return True if an `Open` may have reached the store."""
        return self._opening_sent_ms is not None

    # ── the deadline ──────────────────────────────────────────────────────────────────

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
            effects = self._end(f"session {self.id} was not {missed} in time", "", LOST_EXPIRED)
        carry_out(effects)
        return False

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

    def unconfirmed(self) -> bool:
        """Record that a keep-alive failed. Return True if the one before had succeeded."""
        with self.mutex:
            was_confirmed = self.snapshot.confirmed
            self.snapshot = self.snapshot._replace(confirmed=False)
        return was_confirmed

    def confirmed_at_ms(self) -> int:
        """Return the earliest time from which the store may count the current TTL."""
        return self.snapshot.deadline_ms - self.ttl_ms + margin_ms(self.ttl_ms)

    # ── the end ───────────────────────────────────────────────────────────────────────

    def ended_by_store(self, reply: Ended) -> None:
        """Record that the session has ended in the store."""
        self.ended_in_store = True
        if reply.by:
            why = LOST_REVOKED
        elif reply.reason == EXPIRED:  # the store noticed before we did
            why = LOST_EXPIRED
        else:
            why = LOST_ENDED
        self.end(f"session {self.id} ended: {reply.reason}", reply.by, why)

    def end(self, reason: str, by: str = "", why: str = LOST_KEEPER) -> None:
        """End the session: its leases are lost, and its waiting claims enter again."""
        with self.mutex:
            effects = self._end(reason, by, why)
        carry_out(effects)

    def _end(self, reason: str, by: str, why: str) -> list[Callable[[], None]]:
        effects: list[Callable[[], None]] = []
        if not self.snapshot.ended:
            self.why = why
            self.snapshot = self.snapshot._replace(
                ended=reason, by=by, ended_ms=self.runtime.now_ms()
            )
            self._before_claims_are_lost()
            effects += self.on_end
            effects.append(self.listener.interrupt)
            if self.emitter.observer is not None:
                # The leases are reported first, then the session.
                return [*effects, *self._lose_claims(), self._report_end]
        return effects + self._lose_claims()

    def _report_end(self) -> None:
        from lockfast.flow import observed

        observed.report_session_ended(self)

    def _before_claims_are_lost(self) -> None:
        """Note which claims are held; called once, under the mutex."""

    def _lose_claims(self) -> list[Callable[[], None]]:
        """Lose all claims of the ended session, under the mutex, and return the effects."""
        return []

    # ── its keeper ────────────────────────────────────────────────────────────────────

    def keeper_not_started(self) -> None:
        """Record that the keeper could not be started, which ends the session."""
        self.end("the session's keeper could not be started")
        with self.mutex:
            running = self.keeper is KeeperState.RUNNING
            if not running:
                self.keeper = KeeperState.STOPPED
        if not running:
            self.listener.close()

    def keeper_stopped(self) -> None:
        """Record that the keeper has stopped, which ends the session."""
        self.end("the session's keeper stopped")
        with self.mutex:
            self.keeper = KeeperState.STOPPED
            effects = list(self.on_keeper_stopped)
        self.listener.close()
        carry_out(effects)
