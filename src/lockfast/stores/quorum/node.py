"""The rules of one node: which ballots it accepts, how long it stores them.

A node knows only what it has accepted itself.

  - It accepts a ballot if no lease on that lock is alive here, the ballot is above all ballots
    accepted or released for the lock, and it is within `skew_us` of the node's wall clock.
  - It accepts no ballot twice, not even for different locks: any two majorities share a node, so
    no two grants have the same token. It remembers ballots until its clock refuses them.
  - So a node with a wrong clock accepts nothing. It does not delete anything either: a lease is
    compared with the clock on each request, and is replaced only when a ballot is accepted, which
    proves that the clock is right. A lease lasts for its TTL plus twice the skew, so that no clock
    within the bound ends it before its holder stops.
  - Only its proposer can release a ballot. A released ballot is never accepted again, so a
    proposal that arrives after its own release has no effect.
  - A lease lasts as long as its session on this node. Accepting a ballot renews the session: the
    client computes its deadline from what each node of the majority has promised.
  - A node that restarted may have lost leases and ballots. It accepts nothing until the longest
    TTL has passed, and no ballot that it could have accepted before.
  - A lock not used for IDLE_MS is deleted; its highest ballot raises a floor that applies to all
    locks.

`Node` implements the rules in Python, for memory, SQLite files and the simulator, and as the
reference for the Redis script.
"""

from __future__ import annotations

from collections.abc import MutableMapping
from dataclasses import dataclass, field
from typing import Final

from lockfast.core.checksum import MODULUS, mix
from lockfast.core.commands import Open
from lockfast.core.reasons import CLOSED, EXPIRED
from lockfast.stores.quorum import messages as m

SKEW_US: Final = 500_000
"""How much the clocks of clients and nodes may differ."""
IDLE_MS: Final = 600_000
ENDED_KEPT_MS: Final = 600_000
"""How long an ended session is stored, so that its client learns why it ended."""
WAITING_MS: Final = 2_000
"""A contender that has not asked again within this time has given up."""
WAITING_MAX: Final = 64
"""How many contenders of one lock a node stores; the others rely on their back-off."""
SWEEP_EVERY_MS: Final = 1_000
SWEEP: Final = 16
"""How many unused sessions and locks one sweep deletes; if it finds as many, the next one does not
wait, so that rows cannot accumulate faster than they are deleted."""


@dataclass(slots=True)
class SessionRow:
    open: Open
    deadline_ms: int
    renewals: int = 0
    ended: str = ""
    ended_ms: int = 0
    claims: dict[int, tuple[str, str]] = field(default_factory=dict)
    checksum: int = 0


@dataclass(slots=True)
class Waiting:
    since_us: int
    n: int
    inbox: str
    until_ms: int


@dataclass(slots=True)
class LockRow:
    highest: int = 0
    used_ms: int = 0
    session: str = ""
    """The session whose ballot was accepted last and not released; "" if none."""
    n: int = 0
    ballot: int = 0
    actor: str = ""
    value: str | None = None
    since_ms: int = 0
    hold_until_ms: int = 0
    lock_delay_ms: int = 0
    closed_until_ms: int = 0
    closed_by: int = 0
    """The ballot whose window closed the lock."""
    waiting: dict[tuple[str, str], Waiting] = field(default_factory=dict)
    """Contenders by session and actor."""
    flight: int = 0
    """The flight of its session in which the ballot was proposed."""


class Node:
    """The state of one node, and all its transitions."""

    def __init__(
        self,
        skew_us: int = SKEW_US,
        locks: MutableMapping[tuple[str, str], LockRow] | None = None,
        sessions: MutableMapping[str, SessionRow] | None = None,
        ballots: MutableMapping[int, tuple[str, str]] | None = None,
    ) -> None:
        """The mappings have the rows of a node that does not keep them in memory."""
        self.silent_until_ms = 0
        self._skew_us = skew_us
        self._grace_ms = 2 * skew_us // 1000
        self.floor = 0
        self._locks = locks if locks is not None else {}
        self._sessions = sessions if sessions is not None else {}
        self._ballots = ballots if ballots is not None else {}
        """The recently accepted ballots, and the lock of each."""
        self._now_ms = 0
        self._sweep_at_ms = 0
        self._wakes: list[m.FreeWake] = []

    def restart(self, now_ms: int, wall_us: int, silence_ms: int, *, empty: bool) -> None:
        """Restart after a crash, with all state or with none."""
        if empty:
            self.__init__(self._skew_us)  # type: ignore[misc]
        self.floor = max(self.floor, wall_us + self._skew_us)
        self.silent_until_ms = now_ms + silence_ms + self._grace_ms

    def apply(
        self, request: m.Request, now_ms: int, wall_us: int
    ) -> tuple[m.Answer, list[m.FreeWake]]:
        """Execute one request. The caller sends the wakes afterwards."""
        self._now_ms = now_ms
        self._wakes = []
        return self._execute(request, wall_us), self._wakes

    def _execute(self, request: m.Request, wall_us: int) -> m.Answer:
        if isinstance(request, m.Take):
            return self._take(request, wall_us)
        if isinstance(request, m.Give):
            return self._give(request, wall_us)
        if isinstance(request, m.Keep):
            return self._keep(request)
        if isinstance(request, Open):
            return self._open(request)
        if isinstance(request, m.Sync):
            return self._sync(request)
        if isinstance(request, m.End):
            return self._end(request)
        if isinstance(request, m.Describe):
            return self._describe(request)
        if isinstance(request, m.ReadClaims):
            return self._claims(request.session)
        if isinstance(request, m.ReadLocks):
            return self._read_locks(request)
        return self._read_sessions(request)

    # ── sessions ─────────────────────────────────────────────────────────────────────

    def _live(self, session: str) -> SessionRow | m.Given:
        """Return the session if it is alive on this node, otherwise the answer."""
        found = self._sessions.get(session)
        if found is None:
            return m.Given(m.UNKNOWN)
        why = self._why_ended(found)
        return m.Given(m.ENDED, why) if why else found

    def _why_ended(self, session: SessionRow) -> str:
        """Return why a session has ended, by the current clock; "" if it is alive."""
        if session.ended or session.deadline_ms > self._now_ms:
            return session.ended
        return EXPIRED

    def _renew(self, session: SessionRow) -> None:
        session.deadline_ms = self._now_ms + session.open.ttl_ms + self._grace_ms

    def _open(self, request: Open) -> m.Given:
        found = self._live(request.session)
        if isinstance(found, SessionRow):
            return m.Given(m.OK, found=True)
        if found.status == m.UNKNOWN:
            self._create(request)
            return m.Given(m.OK)
        return found

    def _create(self, request: Open) -> SessionRow:
        made = SessionRow(request, 0)
        self._renew(made)
        self._sessions[request.session] = made
        return made

    def _keep(self, request: m.Keep) -> m.Kept:
        session = self._live(request.session)
        if isinstance(session, m.Given):
            return m.Kept(session.status, session.reason)
        self._renew(session)
        session.renewals += 1
        return m.Kept(m.OK, "", len(session.claims), session.checksum)

    def _end(self, request: m.End) -> m.Given:
        session = self._live(request.session)
        if isinstance(session, m.Given):
            return session
        if request.renewals is not None and session.renewals != request.renewals:
            return m.Given(m.OK)
        session.ended, session.ended_ms = request.reason, self._now_ms
        for key in list(session.claims.values()):
            lock = self._locks[key]
            delay_ms = 0 if request.reason == CLOSED else lock.lock_delay_ms
            self._free(lock, session)
            self._close(lock, delay_ms)
            self._wake_next(lock)
        return m.Given(m.OK, found=True)

    def _sync(self, request: m.Sync) -> m.SessionClaims:
        opening = request.open
        session = self._live(opening.session)
        if isinstance(session, m.Given):
            if session.status == m.ENDED and session.reason != EXPIRED:
                return m.SessionClaims(session.status, session.reason)
            former = self._sessions.get(opening.session)
            if former is not None:
                self._purge(former)
            session = self._create(opening)
        self._renew(session)
        believed = {(claim.n, claim.ballot) for claim in request.claims}
        for n, key in list(session.claims.items()):
            lock = self._locks[key]
            if lock.flight < request.flight and (n, lock.ballot) not in believed:
                self._undo_window(lock)
                self._free(lock, session)
        for claim in request.claims:
            if claim.restore and claim.n not in session.claims:
                self._restore(session, claim, request.flight)
        return self._claims(opening.session)

    def _restore(self, session: SessionRow, claim: m.Restored, flight: int) -> None:
        """Accept a lease that a majority of other nodes has confirmed."""
        lock = self._lock(claim.kind, claim.name)
        if self._now_ms < self.silent_until_ms or self._is_live(lock):
            return
        if lock.session:
            self._free(lock, self._sessions[lock.session])
        self._hold(
            lock,
            session,
            m.Take(
                session.open.session,
                claim.n,
                claim.kind,
                claim.name,
                claim.ballot,
                claim.actor,
                claim.value,
                lock_delay_ms=claim.lock_delay_ms,
                flight=flight,
            ),
        )

    def _purge(self, session: SessionRow) -> None:
        """Release the claims that an ended session still has."""
        for key in list(session.claims.values()):
            lock = self._locks[key]
            # While the claim was stored, its end was computed from that of the session.
            lock.closed_until_ms = max(lock.closed_until_ms, self._closed_until_ms(lock))
            self._free(lock, session)

    def _sweep(self, wall_us: int) -> None:
        """Delete old ballots, and a few ended sessions and unused locks.

        Called only after a ballot was accepted, which proves that the clock is right.
        """
        if self._now_ms < self._sweep_at_ms:
            return
        for ballot in [each for each in self._ballots if each < wall_us - self._skew_us]:
            del self._ballots[ballot]
        dead: list[str] = []
        for id_, session in self._sessions.items():
            ended_ms = session.ended_ms if session.ended else session.deadline_ms
            if ended_ms > self._now_ms:
                continue
            if session.claims:
                self._purge(session)
            if ended_ms + ENDED_KEPT_MS <= self._now_ms:
                dead.append(id_)
            if len(dead) >= SWEEP:
                break
        for id_ in dead:
            del self._sessions[id_]
        idle = [
            key
            for key, lock in self._locks.items()
            if not lock.session
            and lock.used_ms + IDLE_MS <= self._now_ms
            and self._closed_until_ms(lock) <= self._now_ms
        ]
        for key in idle[:SWEEP]:
            self.floor = max(self.floor, self._locks.pop(key).highest)
        if len(dead) < SWEEP and len(idle) <= SWEEP:
            self._sweep_at_ms = self._now_ms + SWEEP_EVERY_MS

    # ── ballots ──────────────────────────────────────────────────────────────────────

    def _lock(self, kind: str, name: str) -> LockRow:
        return self._locks.setdefault((kind, name), LockRow(used_ms=self._now_ms))

    def _is_live(self, lock: LockRow) -> bool:
        """Return True if a lease on the lock is alive on this node."""
        if not lock.session:
            return False
        session = self._sessions.get(lock.session)
        return (
            session is not None
            and not self._why_ended(session)
            and (not lock.hold_until_ms or lock.hold_until_ms > self._now_ms)
        )

    def _closed_until_ms(self, lock: LockRow) -> int:
        """Return until when the lock is closed, by a window or by its lock_delay."""
        until_ms = lock.closed_until_ms
        if lock.session and lock.lock_delay_ms and not self._is_live(lock):
            session = self._sessions[lock.session]
            ended_ms = session.ended_ms if session.ended else session.deadline_ms
            if lock.hold_until_ms:
                ended_ms = min(ended_ms, lock.hold_until_ms)
            until_ms = max(until_ms, ended_ms + lock.lock_delay_ms)
        return until_ms

    def _take(self, request: m.Take, wall_us: int) -> m.Taken:
        if request.open is not None:
            opened = self._open(request.open)
            if opened.status != m.OK:
                return m.Taken(opened.status, opened.reason, wall_us=wall_us)
        session = self._live(request.session)
        if isinstance(session, m.Given):
            return m.Taken(session.status, session.reason, wall_us=wall_us)
        lock = self._lock(request.kind, request.name)
        highest = max(lock.highest, self.floor)
        is_live = self._is_live(lock)
        own = (lock.session, lock.n, lock.ballot) == (request.session, request.n, request.ballot)
        if not (is_live and own):
            closed_until_ms = self._closed_until_ms(lock)
            if self._now_ms < self.silent_until_ms:
                status, free_ms = m.SILENT, self.silent_until_ms - self._now_ms
            elif is_live:
                status, free_ms = m.HELD, self._holder(lock).left_ms + self._grace_ms
            elif closed_until_ms > self._now_ms:
                status, free_ms = m.SHUT, closed_until_ms - self._now_ms
            elif request.ballot <= highest:
                status, free_ms = m.LOW, 0
            elif request.ballot > wall_us + self._skew_us:
                status, free_ms = m.AHEAD, 0
            elif request.ballot < wall_us - self._skew_us:
                status, free_ms = m.BEHIND, 0
            elif request.ballot in self._ballots:
                status, free_ms = m.LOW, 0
            else:
                status, free_ms = m.OK, 0
            if status != m.OK:
                contenders = self._note_waiting(lock, session, request)
                holder = self._holder(lock) if is_live else None
                return m.Taken(status, "", highest, wall_us, contenders, free_ms, holder)
            if lock.session:
                self._free(lock, self._sessions[lock.session])
            self._hold(lock, session, request)
            self._ballots[request.ballot] = (request.kind, request.name)
            lock.waiting.pop((request.session, request.actor), None)
            self._sweep(wall_us)
        self._renew(session)
        return m.Taken(m.OK, highest=lock.highest, contenders=self._contenders(lock))

    def _hold(self, lock: LockRow, session: SessionRow, request: m.Take) -> None:
        now_ms = self._now_ms
        lock.highest = max(lock.highest, request.ballot)
        lock.used_ms = lock.since_ms = now_ms
        lock.session, lock.n, lock.ballot = request.session, request.n, request.ballot
        lock.actor, lock.value = request.actor, request.value
        lock.flight = request.flight
        lock.hold_until_ms = now_ms + request.max_hold_ms if request.max_hold_ms else 0
        lock.lock_delay_ms = request.lock_delay_ms
        if request.window_ms:
            lock.closed_until_ms, lock.closed_by = now_ms + request.window_ms, request.ballot
        session.claims[request.n] = (request.kind, request.name)
        session.checksum = (session.checksum + mix(request.n, request.ballot)) % MODULUS

    def _free(self, lock: LockRow, session: SessionRow) -> None:
        session.claims.pop(lock.n, None)
        session.checksum = (session.checksum - mix(lock.n, lock.ballot)) % MODULUS
        lock.session, lock.n, lock.ballot = "", 0, 0
        lock.hold_until_ms = lock.lock_delay_ms = 0
        lock.used_ms = self._now_ms

    def _close(self, lock: LockRow, span_ms: int) -> None:
        if span_ms:
            lock.closed_until_ms = max(lock.closed_until_ms, self._now_ms + span_ms)
            lock.closed_by = 0

    @staticmethod
    def _undo_window(lock: LockRow) -> None:
        if lock.closed_by == lock.ballot:
            lock.closed_until_ms = lock.closed_by = 0

    def _give(self, request: m.Give, wall_us: int) -> m.Given:
        lock = self._lock(request.kind, request.name)
        session = self._live(request.session)
        status, reason = (
            (session.status, session.reason) if isinstance(session, m.Given) else (m.OK, "")
        )
        own = (lock.session, lock.n, lock.ballot) == (request.session, request.n, request.ballot)
        found = own and self._is_live(lock)
        if own:
            if request.undo:
                self._undo_window(lock)
            self._free(lock, self._sessions[request.session])
            self._close(lock, request.close_ms)
        if abs(request.ballot - wall_us) <= self._skew_us:
            # The proposal itself may still be in flight.
            lock.highest = max(lock.highest, request.ballot)
            lock.used_ms = self._now_ms
        if own and not request.undo:
            self._wake_next(lock)
        return m.Given(status, reason, found)

    def _describe(self, request: m.Describe) -> m.Given:
        session = self._live(request.session)
        if isinstance(session, m.Given):
            return session
        lock = self._lock(request.kind, request.name)
        own = (lock.session, lock.n, lock.ballot) == (request.session, request.n, request.ballot)
        if own and request.what == "actor":
            lock.actor = request.text
        elif own:
            lock.value = request.text
        return m.Given(m.OK, found=own)

    # ── contenders ───────────────────────────────────────────────────────────────────

    def _note_waiting(self, lock: LockRow, session: SessionRow, request: m.Take) -> int:
        """Store a contender that wants to be woken. Return how many there are."""
        now_ms = self._now_ms
        for key in [key for key, each in lock.waiting.items() if each.until_ms <= now_ms]:
            del lock.waiting[key]
        key = (request.session, request.actor)
        if request.since_us and (key in lock.waiting or len(lock.waiting) < WAITING_MAX):
            lock.waiting[key] = Waiting(
                request.since_us, request.n, session.open.inbox, now_ms + WAITING_MS
            )
        return len(lock.waiting)

    def _contenders(self, lock: LockRow) -> int:
        return sum(each.until_ms > self._now_ms for each in lock.waiting.values())

    def _wake_next(self, lock: LockRow) -> None:
        """Wake the contender that has waited longest; all nodes choose the same one."""
        if self._closed_until_ms(lock) > self._now_ms:
            return
        live = [
            (each.since_us, key, each)
            for key, each in lock.waiting.items()
            if each.until_ms > self._now_ms
        ]
        if live:
            _, key, first = min(live, key=lambda item: item[:2])
            del lock.waiting[key]
            self._wakes.append(m.FreeWake(first.inbox, key[0], first.n))

    # ── reading ──────────────────────────────────────────────────────────────────────

    def _holder(self, lock: LockRow) -> m.Holder:
        session = self._sessions[lock.session]
        until_ms = session.deadline_ms - self._grace_ms
        if lock.hold_until_ms:
            until_ms = min(until_ms, lock.hold_until_ms)
        return m.Holder(
            lock.session,
            lock.n,
            lock.ballot,
            session.open.owner,
            session.open.process,
            session.renewals,
            lock.actor,
            lock.value,
            self._now_ms - lock.since_ms,
            max(0, until_ms - self._now_ms),
        )

    def _claims(self, session_id: str) -> m.SessionClaims:
        session = self._live(session_id)
        if isinstance(session, m.Given):
            return m.SessionClaims(session.status, session.reason)
        claims = []
        for n, key in sorted(session.claims.items()):
            lock = self._locks[key]
            if self._is_live(lock):
                claims.append(
                    m.HeldClaim(
                        n, *key, lock.ballot, lock.actor, lock.value, self._now_ms - lock.since_ms
                    )
                )
        left_ms = max(0, session.deadline_ms - self._grace_ms - self._now_ms)
        return m.SessionClaims(m.OK, "", session.open.owner, left_ms, tuple(claims))

    def _read_locks(self, request: m.ReadLocks) -> m.Locks:
        if not request.limit:
            lock = self._locks.get((request.kind, request.name)) or LockRow()
            return m.Locks((self._view(request.kind, request.name, lock),), False)
        names = sorted(
            name
            for (kind, name), lock in self._locks.items()
            if kind == request.kind
            and name.startswith(request.name)
            and name > request.after
            and self._is_live(lock)
        )
        page = names[: request.limit]
        views = tuple(self._view(request.kind, n, self._locks[request.kind, n]) for n in page)
        return m.Locks(views, len(names) > len(page))

    def _view(self, kind: str, name: str, lock: LockRow) -> m.LockView:
        closed_ms = max(0, self._closed_until_ms(lock) - self._now_ms)
        holder = self._holder(lock) if self._is_live(lock) else None
        return m.LockView(kind, name, closed_ms, self._contenders(lock), holder)

    def _read_sessions(self, request: m.ReadSessions) -> m.NodeSessions:
        ids = sorted(id_ for id_ in self._sessions if id_ > request.after)
        page = ids[: request.limit]
        return m.NodeSessions(tuple(map(self._session_view, page)), len(ids) > len(page))

    def _session_view(self, id_: str) -> m.NodeSession:
        session = self._sessions[id_]
        opening, ended = session.open, self._why_ended(session)
        left_ms = max(0, session.deadline_ms - self._grace_ms - self._now_ms)
        return m.NodeSession(
            id_,
            opening.owner,
            opening.metadata,
            opening.process,
            opening.ttl_ms,
            0 if ended else left_ms,
            0 if ended else len(session.claims),
            session.renewals,
            ended,
        )
