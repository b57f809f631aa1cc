"""The keeper: the background job of a session.

It renews the session, sends pending releases, receives wakes, and detects dead processes,
deadlocks and expired leases. No request outlives the session's deadline, so leases are
declared lost in time whatever the store does.
"""

from __future__ import annotations

from typing import Final

from lockfast.core.commands import (
    WAKE_EVENTS,
    WAKE_WANTED,
    Claims,
    ClaimsReply,
    Close,
    Command,
    Convert,
    Done,
    Ended,
    Expel,
    Gone,
    Granted,
    Look,
    Open,
    Queued,
    Renew,
    Renewed,
    Reply,
    Sessions,
    SessionsReply,
    Wake,
)
from lockfast.core.deadlock import Cycle
from lockfast.core.reasons import LOST_CLOSED
from lockfast.errors import (
    SURELY_NOT_DONE,
    LockfastError,
    OutcomeUnknownError,
    StoreError,
    StoreUnavailableError,
)
from lockfast.flow import deadlock
from lockfast.flow.ending import end_session
from lockfast.flow.log import logger
from lockfast.flow.retry import Backoff
from lockfast.flow.session import RENEWALS_PER_TTL, Proof, Session
from lockfast.flow.session_life import KeeperState
from lockfast.flow.silent_sessions import SLACK, SilentSessions, just_before
from lockfast.ports import PROCESS_DIED, WAKE_DIED, WAKE_DISCONNECTED, WAKE_MISSED, Wire

REQUEST_MS_MAX: Final = 2000
LISTEN_AGAIN_MS: Final = 100
"""The pause after a listener failed. The keeper cannot be interrupted during it."""
LOG_EVERY_MS: Final = 60_000
"""The interval at which a persistent failure is logged."""
JITTER: Final = 0.1
"""Keep-alives are sent up to a tenth early, at random, so that clients do not synchronize."""
CLOSE_MS: Final = 2000
OUTBOX_MS: Final = 20
"""How long the keeper sends releases before it attends to keep-alives and wakes again: a thousand
cancelled claims must not delay them."""
LOOKING_SHARE: Final = 9
"""After a deadlock search the keeper pauses searching for nine times as long as it took."""
LOOK_SLACK_MS: Final = 1
"""Check a claim this long after the claims ahead of it expire, not in the same millisecond."""


class Keeper:
    """Maintains one session, from before it is opened until it has ended.

    No external input may stop the keeper: if a reply, a wake or another client's row makes
    it raise, it logs the error and continues. Otherwise one malformed row would cost every
    client that reads it all its leases.
    """

    def __init__(self, session: Session, wire: Wire) -> None:
        self._session = session
        self._wire = wire
        self._runtime = session.runtime
        self._renew_at_ms: int | None = None
        self._closing_until_ms: int | None = None
        # One backoff per duty: a command that always fails must not delay the others,
        # least of all the keep-alive.
        pause_max_ms = session.ttl_ms // 10 + 1
        self._renewing = Backoff(pause_max_ms)
        self._sending = Backoff(pause_max_ms)
        self._searching = Backoff(pause_max_ms)
        self._looking = Backoff(pause_max_ms)
        """For claims ahead that the store keeps longer than it said."""
        self._log_at_ms: dict[str, int] = {}
        """Per duty, when its next failure may be logged."""
        self._silent_sessions = SilentSessions()
        self._connections = 0

    async def run(self) -> None:
        session = self._session
        session.keeper = KeeperState.RUNNING
        try:
            while not session.snapshot.ended:
                # Check cheaply first: in most iterations nothing is pending.
                if session.has_pending():
                    await self._send_outbox()
                if session.closing and self._outbox_is_done():
                    # End the leases locally first: once the store has closed the session,
                    # others may hold its locks.
                    session.end("the client was closed", why=LOST_CLOSED)
                    await self._close(Close(session.id))
                    return
                if session.snapshot.opened:
                    if self._runtime.now_ms() >= self._due_ms():
                        await self._renew_if_due()
                    if session.deadlock_at_ms is not None:
                        await self._find_deadlocks_if_due()
                self._expire_claims()
                if session.alive():
                    for wake in await self._listen():
                        await self._renew_if_due()  # each wake may take a request
                        if not session.alive():
                            break
                        await self._hear(wake)
            if not session.ended_in_store:
                # Tell the store, so that our successors need not wait for the TTL. This is a
                # loss and not a release, so `lock_delay` applies.
                await self._let_work_stop()
                await self._close(Expel(session.id, session.snapshot.ended))
        except BaseException as error:
            # From here on nothing renews the session, so its leases must be declared lost.
            session.end(f"the session's keeper failed: {error!r}")
            if isinstance(error, Exception):
                logger.warning("session %s has ended: %s", session.id, session.snapshot.ended)
            raise
        finally:
            self._wire.close()
            session.keeper_stopped()

    def _outbox_is_done(self) -> bool:
        """Return True if no release is pending, or CLOSE_MS has elapsed; the rest expires."""
        now_ms = self._runtime.now_ms()
        if self._closing_until_ms is None:
            self._closing_until_ms = now_ms + CLOSE_MS
        return not self._session.has_pending() or now_ms >= self._closing_until_ms

    async def _let_work_stop(self) -> None:
        """Wait until the holders of lost leases have stopped, at most for the margin.

        The client declares a lease lost one margin before the store expires it. Holders may
        use that time to stop, so the successor must not be admitted earlier.
        """
        while (left_ms := self._session.work_left_ms()) > 0:
            await self._session.work_stopped.wait(left_ms)

    # ── timing ───────────────────────────────────────────────────────────────────────

    def _idle_ms(self) -> int | None:
        """Return the time until the next duty is due; None if only an interrupt is expected."""
        session = self._session
        snapshot = session.snapshot
        due_ms: int | None = None
        if snapshot.opened:
            due_ms = self._due_ms()
            if snapshot.deadline_ms < due_ms:
                due_ms = snapshot.deadline_ms
            deadlock_at_ms = session.deadlock_at_ms
            if deadlock_at_ms is not None and deadlock_at_ms < due_ms:
                due_ms = min(due_ms, max(deadlock_at_ms, self._searching.at_ms))
        elif snapshot.deadline_ms:
            due_ms = snapshot.deadline_ms
        outbox_ms = session.outbox_due_ms()
        if outbox_ms is not None:
            outbox_ms = max(outbox_ms, self._sending.at_ms)
        if session.closing:
            outbox_ms = min(outbox_ms or 0, self._closing_until_ms or 0)
        if outbox_ms is not None:
            due_ms = outbox_ms if due_ms is None else min(due_ms, outbox_ms)
        return max(0, due_ms - self._runtime.now_ms()) if due_ms is not None else None

    def _due_ms(self) -> int:
        """Return when the next keep-alive is due: a renewal, a check of a claim, or a retry."""
        at_ms = self._renew_at_ms
        if at_ms is None:
            # Count from before `Open` was sent, however long the reply took.
            at_ms = self._renew_at_ms = self._next_renewal(self._session.confirmed_at_ms())
        look_at_ms = self._session.look_at_ms
        if look_at_ms is not None:
            at_ms = min(at_ms, max(look_at_ms + LOOK_SLACK_MS, self._looking.at_ms))
        return max(at_ms, self._renewing.at_ms)

    def _next_renewal(self, from_ms: int) -> int:
        every_ms = self._session.ttl_ms / RENEWALS_PER_TTL
        return from_ms + int(every_ms * (1 - JITTER * self._runtime.random()))

    def _budget_ms(self) -> int:
        """Return the timeout of one request: it must end before the deadline, and soon enough
        not to delay the other duties. A request that times out is retried."""
        session = self._session
        budget_ms = min(session.ttl_ms // RENEWALS_PER_TTL, REQUEST_MS_MAX)
        if session.snapshot.deadline_ms:
            left_ms = session.snapshot.deadline_ms - self._runtime.now_ms()
            budget_ms = min(left_ms, budget_ms)
        return max(1, budget_ms)

    def _log_failure(self, error: Exception, doing: str) -> None:
        """Log a failure, at most once a minute while it persists.

        If the store is unreachable, the outage is logged instead, once for all duties.
        """
        if isinstance(error, StoreUnavailableError | OutcomeUnknownError):
            if not self._session.closing:
                self._session.emitter.outage.failed(error)
            return
        now_ms = self._runtime.now_ms()
        if now_ms >= self._log_at_ms.get(doing, 0):
            self._log_at_ms[doing] = now_ms + LOG_EVERY_MS
            told = error if isinstance(error, LockfastError) else repr(error)
            logger.warning("%s of session %s failed: %s", doing, self._session.id, told)

    def _failed(self, error: Exception, doing: str, backoff: Backoff) -> None:
        self._log_failure(error, doing)
        backoff.failed(self._runtime.now_ms())

    def _succeeded(self, doing: str, backoff: Backoff) -> None:
        if self._session.emitter.outage.failures:
            self._session.emitter.outage.ended()
        self._log_at_ms.pop(doing, None)
        backoff.succeeded()

    # ── duties ───────────────────────────────────────────────────────────────────────

    async def _renew_if_due(self) -> None:
        session = self._session
        if not session.snapshot.opened:
            return
        if self._runtime.now_ms() < self._due_ms() or not session.alive():
            return
        proof = session.proof()
        observing = session.emitter.observer is not None
        sent_us = self._runtime.now_us() if observing else 0
        sent_ms = self._runtime.now_ms()
        is_early = self._renew_at_ms is not None and sent_ms < self._renew_at_ms
        try:
            reply = await self._wire.send(
                Renew(session.id, proof.count, proof.checksum, proof.lowest, proof.waiting),
                self._budget_ms(),
            )
            if isinstance(reply, Ended):
                session.ended_by_store(reply)
                return
            if not isinstance(reply, Renewed):
                raise StoreError("lockfast", f"the store answered {reply!r} to a keep-alive")
            if not reply.matches:
                await self._list(proof)
            if not session.renewed(sent_ms):
                return
            for n, look in reply.looks:
                session.apply_view(n, look, sent_ms)
            if observing:
                self._report_renewed(sent_us, proof)
        except Exception as error:
            was_confirmed = session.unconfirmed()
            if observing:
                self._report_failed(sent_us, error, was_confirmed)
            self._silent_sessions.clear()
            self._failed(error, "keep-alive", self._renewing)
            return
        self._succeeded("keep-alive", self._renewing)
        self._renew_at_ms = self._next_renewal(sent_ms)
        # The claims ahead were due to expire. If they are still there, the store's estimate was
        # too early: an etcd lease outlives its TTL, and a clock may be wrong.
        if is_early and session.look_at_ms is not None:
            self._looking.failed(self._runtime.now_ms())
        else:
            self._looking.succeeded()
        await self._expel_the_silent(reply)

    def _report_renewed(self, sent_us: int, proof: Proof) -> None:
        from lockfast.flow import observed

        observed.report_renewed(self._session, sent_us, len(proof.held), len(proof.queued))

    def _report_failed(self, sent_us: int, error: Exception, was_confirmed: bool) -> None:
        from lockfast.flow import observed

        session = self._session
        observed.report_keep_alive_failed(session, sent_us, error)
        if was_confirmed:
            self._report_uncertain()

    def _report_uncertain(self) -> None:
        session = self._session
        if session.emitter.observer is not None:
            from lockfast.flow import observed

            held = [holding for holding in session.holdings() if holding.held_us is not None]
            observed.report_uncertain(session, held)

    async def _expel_the_silent(self, reply: Renewed) -> None:
        """Expel sessions ahead of us whose keep-alives have stopped but that the store keeps."""
        silent_sessions = self._silent_sessions
        now_ms = self._runtime.now_ms()
        # A wire that has reconnected may now talk to another server.
        connections = getattr(self._wire, "connections", 0)
        if connections != self._connections:
            self._connections = connections
            silent_sessions.clear()
        ahead = {n: look.ahead if isinstance(look, Queued) else () for n, look in reply.looks}
        silent_sessions.saw(ahead, self._session.waiting(), now_ms)
        try:
            for session, renewals, still_ms in silent_sessions.silent(now_ms, self._session.ttl_ms):
                found = await self._wire.send(Sessions(just_before(session), 1), self._budget_ms())
                views = found.sessions if isinstance(found, SessionsReply) else ()
                seen = (session, renewals)
                ttls_ms = [view.ttl_ms for view in views if (view.session, view.renewals) == seen]
                if not ttls_ms or still_ms < SLACK * ttls_ms[0]:
                    continue  # it has ended or was renewed, or its TTL has not elapsed yet
                logger.warning(
                    "session %s has not been renewed for %d ms; expelling it", session, still_ms
                )
                await self._expel(Expel(session, "its keep-alives stopped", renewals))
        except Exception as error:
            silent_sessions.clear()
            self._log_failure(error, "check of a silent session")

    async def _find_deadlocks_if_due(self) -> None:
        """If a claim has waited too long, search for deadlocks and break those found."""
        session = self._session
        at_ms = session.deadlock_at_ms
        if at_ms is None or self._runtime.now_ms() < max(at_ms, self._searching.at_ms):
            return

        async def send(command: Command) -> Reply:
            await self._renew_if_due()  # a search may take many requests
            return await self._wire.send(command, self._budget_ms())

        began_ms = self._runtime.now_ms()
        try:
            start = session.start_of_deadlock_look()
            if not start:
                return  # nothing was sent, so this says nothing about the store
            now_ms = self._runtime.now_ms
            for cycle in await deadlock.look(send, start, now_ms):
                if await deadlock.end(send, cycle):
                    self._report_deadlock(cycle)
        except Exception as error:
            self._failed(error, "deadlock search", self._searching)
        else:
            self._succeeded("deadlock search", self._searching)
        if session.deadlock_at_ms is not None:
            # Reading long queues takes time; leave most of it to the other duties.
            ended_ms = self._runtime.now_ms()
            rest_ms = LOOKING_SHARE * (ended_ms - began_ms)
            session.deadlock_at_ms = max(session.deadlock_at_ms, ended_ms + rest_ms)

    def _report_deadlock(self, cycle: Cycle) -> None:
        from lockfast.flow import observed

        victim = cycle.victim.owner if cycle.passing is None else ""
        observed.report_deadlock(self._session, cycle.lines, victim)

    async def _list(self, proof: Proof) -> None:
        """Read all claims of the session to find where the store's state differs from ours."""
        session = self._session
        sent_ms = self._runtime.now_ms()
        reply = await self._wire.send(Claims(session.id), self._budget_ms())
        if isinstance(reply, ClaimsReply):
            session.reconcile(proof, reply.claims, sent_ms)

    async def _send_outbox(self) -> None:
        """Send pending commands, for about OUTBOX_MS; each until the store has replied to it."""
        session = self._session
        session.release_finalized()
        sent_ms = self._runtime.now_ms()
        until_ms = sent_ms + OUTBOX_MS
        while sent_ms < until_ms and (item := session.next_in_outbox()) is not None:
            if sent_ms < self._sending.at_ms:
                return
            n, command = item
            try:
                if session.snapshot.opened or await self._open():
                    reply = await self._wire.send(command, self._budget_ms())
                    if isinstance(command, Convert):
                        session.conversion_cancelled(command, reply, sent_ms)
            except Exception as error:
                self._failed(error, "leave", self._sending)
                return
            session.sent(n, command)
            self._succeeded("leave", self._sending)
            sent_ms = self._runtime.now_ms()

    async def _open(self) -> bool:
        """Open the session if necessary, so that a `Leave` that overtakes its `Enter` counts."""
        session = self._session
        opening = session.opening()
        if isinstance(opening, Open):
            try:
                reply = await self._wire.send(opening, self._budget_ms())
            except SURELY_NOT_DONE:
                session.opening_refused()
                raise
            if not isinstance(reply, Done):
                return False
            session.opened()
        return True

    def _expire_claims(self) -> None:
        session = self._session
        if session.has_bounded() and session.alive():
            for holding in session.past_max_hold(self._runtime.now_ms()):
                session.expire(holding)

    async def _listen(self) -> list[Wake]:
        """Wait until the next duty is due, and return the wakes received."""
        session = self._session
        idle_ms = self._idle_ms()
        try:
            heard = list(await session.listener.listen(idle_ms))
        except Exception as error:
            self._log_failure(error, "listening")
            pause_ms = LISTEN_AGAIN_MS if idle_ms is None else min(LISTEN_AGAIN_MS, idle_ms)
            await self._runtime.signal().wait(pause_ms)
            heard = []
        return heard + session.take_inbox()

    async def _hear(self, wake: Wake) -> None:
        """Handle one wake."""
        session = self._session
        try:
            if wake.what == WAKE_EVENTS:
                self._tell_watchers()
            elif wake.what == WAKE_WANTED:
                session.wanted(wake.n)
            elif wake.what in (WAKE_MISSED, WAKE_DISCONNECTED):
                self._tell_watchers()
                if wake.what == WAKE_DISCONNECTED and session.unconfirmed():
                    self._report_uncertain()
                # An immediate keep-alive detects changes of held and waiting claims; a claim
                # whose `Enter` is in flight is checked as soon as it is known to wait.
                session.wakes_missed()
                self._renew_at_ms = self._runtime.now_ms()
            elif wake.what == WAKE_DIED:
                await self._expel(Expel(wake.session, PROCESS_DIED))
            elif not session.release_first(wake.n):
                # A claim that we have left may hold the lock now, and others wait for it.
                await self._look(wake.n)
        except Exception as error:
            # The next keep-alive detects what this wake reported.
            self._log_failure(error, "check of a claim")

    def _tell_watchers(self) -> None:
        """Let watchers read the log, which may have grown."""
        for changed in list(self._session.events_changed):
            changed()

    async def _look(self, n: int) -> None:
        session = self._session
        sent_ms = self._runtime.now_ms()
        reply = await self._wire.send(Look(session.id, n), self._budget_ms())
        if isinstance(reply, Ended):
            session.ended_by_store(reply)
        elif isinstance(reply, Granted | Queued) or (isinstance(reply, Gone) and n):
            session.apply_view(n, reply, sent_ms)

    async def _expel(self, command: Expel) -> None:
        """Expel the session of another client."""
        await end_session(self._runtime, self._wire.send, command, self._budget_ms())

    async def _close(self, command: Command) -> None:
        """End the session in the store, if the store replies in time."""
        session = self._session
        if not session.was_sent():
            return
        try:
            opening = session.opening()
            if opening is not None:
                # A caller's `Open` may still be in flight and would create the session after
                # our close. Opening it first prevents that: a closed session stays closed.
                await self._wire.send(opening, CLOSE_MS)
            await end_session(self._runtime, self._wire.send, command, CLOSE_MS)
        except Exception as error:
            self._log_failure(error, "keep-alive" if isinstance(command, Expel) else "close")
