"""The keeper: one background job per session that does everything nobody waits for.

It renews the session, gives back abandoned claims, hears wakes, notices deaths and
deadlines. Its requests are bounded by the session's deadline, so whatever the store
does, leases are declared lost in time.
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
from lockfast.errors import SURELY_NOT_DONE, LockfastError, StoreError
from lockfast.flow import deadlock
from lockfast.flow.ending import end_session
from lockfast.flow.log import logger
from lockfast.flow.retry import Backoff
from lockfast.flow.session import RENEWALS_PER_TTL, Proof, Session
from lockfast.flow.silent_sessions import SLACK, SilentSessions, just_before
from lockfast.ports import PROCESS_DIED, WAKE_DIED, WAKE_MISSED, Wire

REQUEST_MS_MAX: Final = 2000
LISTEN_AGAIN_MS: Final = 100
"""After a listener has failed. Meanwhile nobody can interrupt the keeper."""
LOG_EVERY_MS: Final = 60_000
"""A failure that lasts is logged this often."""
JITTER: Final = 0.1
"""Keep-alives go up to a tenth early, so that those of a fleet do not march in step."""
CLOSE_MS: Final = 2000
LOOKING_SHARE: Final = 9
"""The keeper looks for deadlocks for a tenth of its time at most."""
LOOK_SLACK_MS: Final = 1
"""A look is due just after those ahead are over, not in the very same millisecond."""


class Keeper:
    """Keeps one session, from before it is opened until it has ended.

    Nothing that comes from outside may stop it: whatever a reply, a wake or a row of another
    client makes it raise is logged, and it goes on. Otherwise one unreadable row would cost
    its readers all their leases.
    """

    def __init__(self, session: Session, wire: Wire) -> None:
        self._session = session
        self._wire = wire
        self._runtime = session.runtime
        self._renew_at_ms: int | None = None
        self._closing_until_ms: int | None = None
        # One for each duty: a command that always fails must not keep the others from being
        # sent, least of all the keep-alive.
        self._renewing = Backoff(session.ttl_ms)
        self._giving_back = Backoff(session.ttl_ms)
        self._searching = Backoff(session.ttl_ms)
        self._log_at_ms: dict[str, int] = {}
        """Per duty, when its failure is worth a line in the log again."""
        self._silent_sessions = SilentSessions()
        self._connections = 0

    async def run(self) -> None:
        session = self._session
        session.kept = True
        try:
            while not session.snapshot.ended:
                # Most of the time there is nothing to do, and that is to cost nothing.
                if session.owes():
                    await self._give_back()
                if session.closing and self._has_given_back():
                    # Before the store hears of it: from then on others may hold.
                    session.end("the client was closed")
                    await self._close(Close(session.id))
                    return
                if session.snapshot.opened:
                    if self._runtime.now_ms() >= self._due_ms():
                        await self._renew_if_due()
                    if session.deadlock_at_ms is not None:
                        await self._find_deadlocks_if_due()
                self._notice_ends()
                if session.alive():
                    for wake in await self._listen():
                        await self._hear(wake)
            if not session.ended_in_store:
                # Let those behind us go on before the store ends the session itself. It is
                # a loss and not a release, so `lock_delay` applies.
                await self._let_work_stop()
                await self._close(Expel(session.id, session.snapshot.ended))
        except BaseException as error:
            # Nobody renews the session from here on, so nobody may believe that it lives.
            session.end(f"its keeper failed: {error!r}")
            if isinstance(error, Exception):
                logger.warning("session %s has ended: %s", session.id, session.snapshot.ended)
            raise
        finally:
            self._wire.close()
            session.stopped()

    def _has_given_back(self) -> bool:
        """Whether the outbox is empty, or has had its time: what is left ends by the TTL."""
        now_ms = self._runtime.now_ms()
        if self._closing_until_ms is None:
            self._closing_until_ms = now_ms + CLOSE_MS
        return not self._session.owes() or now_ms >= self._closing_until_ms

    async def _let_work_stop(self) -> None:
        """Wait until the work under lost leases has stopped, at most for the margin.

        A lease is lost a margin before the store ends it. That time is promised to the work
        for stopping, so the successor is not let in earlier.
        """
        while (left_ms := self._session.work_left_ms()) > 0:
            await self._session.work_stopped.wait(left_ms)

    # ── timing ───────────────────────────────────────────────────────────────────────

    def _idle_ms(self) -> int | None:
        """How long there is nothing to do; None: until interrupted."""
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
        outbox_ms = 0 if session.closing else session.outbox_due_ms()
        if outbox_ms is not None:
            outbox_ms = max(outbox_ms, self._giving_back.at_ms)
            due_ms = outbox_ms if due_ms is None else min(due_ms, outbox_ms)
        return max(0, due_ms - self._runtime.now_ms()) if due_ms is not None else None

    def _due_ms(self) -> int:
        """When the next keep-alive is due: by itself, by a look, by a retry."""
        at_ms = self._renew_at_ms
        if at_ms is None:
            # Counted from before the session was opened, however long that took.
            at_ms = self._renew_at_ms = self._next_renewal(self._session.confirmed_at_ms())
        look_at_ms = self._session.look_at_ms
        if look_at_ms is not None and look_at_ms + LOOK_SLACK_MS < at_ms:
            at_ms = look_at_ms + LOOK_SLACK_MS
        return max(at_ms, self._renewing.at_ms)

    def _next_renewal(self, from_ms: int) -> int:
        every_ms = self._session.ttl_ms / RENEWALS_PER_TTL
        return from_ms + int(every_ms * (1 - JITTER * self._runtime.random()))

    def _budget_ms(self) -> int:
        """How long one request may take: never past the deadline, and not so long that
        nothing else is done meanwhile; it is tried again."""
        session = self._session
        budget_ms = min(session.ttl_ms // RENEWALS_PER_TTL, REQUEST_MS_MAX)
        if session.snapshot.deadline_ms:
            left_ms = session.snapshot.deadline_ms - self._runtime.now_ms()
            budget_ms = min(left_ms, budget_ms)
        return max(1, budget_ms)

    def _log_failure(self, error: Exception, doing: str) -> None:
        """At most once a minute while it lasts."""
        now_ms = self._runtime.now_ms()
        if now_ms >= self._log_at_ms.get(doing, 0):
            self._log_at_ms[doing] = now_ms + LOG_EVERY_MS
            told = error if isinstance(error, LockfastError) else repr(error)
            logger.warning("%s of session %s failed: %s", doing, self._session.id, told)

    def _failed(self, error: Exception, doing: str, backoff: Backoff) -> None:
        self._log_failure(error, doing)
        backoff.failed(self._runtime.now_ms())

    def _succeeded(self, doing: str, backoff: Backoff) -> None:
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
        sent_ms = self._runtime.now_ms()
        try:
            reply = await self._wire.send(
                Renew(session.id, proof.count, proof.checksum, proof.lowest, proof.waiting),
                self._budget_ms(),
            )
            if isinstance(reply, Ended):
                session.end_as_told(reply)
                return
            if not isinstance(reply, Renewed):
                raise StoreError("lockfast", f"the store answered {reply!r} to a keep-alive")
            if not reply.matches:
                await self._list(proof)
            if not session.renewed(sent_ms):
                return
            for n, look in reply.looks:
                session.look_over(n, look, sent_ms)
        except Exception as error:
            session.unconfirmed()
            self._silent_sessions.forget()
            self._failed(error, "keep-alive", self._renewing)
            return
        self._succeeded("keep-alive", self._renewing)
        self._renew_at_ms = self._next_renewal(sent_ms)
        await self._expel_the_silent(reply)

    async def _expel_the_silent(self, reply: Renewed) -> None:
        """End those ahead of us whose keep-alives have stopped, if the store does not see it."""
        silent_sessions = self._silent_sessions
        now_ms = self._runtime.now_ms()
        # A wire that has connected anew may speak to another server than before.
        connections = getattr(self._wire, "connections", 0)
        if connections != self._connections:
            self._connections = connections
            silent_sessions.forget()
        queued = [look for _, look in reply.looks if isinstance(look, Queued)]
        silent_sessions.saw((blocker for look in queued for blocker in look.ahead), now_ms)
        try:
            for session, renewals, still_ms in silent_sessions.silent(now_ms, self._session.ttl_ms):
                found = await self._wire.send(Sessions(just_before(session), 1), self._budget_ms())
                views = found.sessions if isinstance(found, SessionsReply) else ()
                ttls_ms = [view.ttl_ms for view in views if view.session == session]
                if not ttls_ms or still_ms < SLACK * ttls_ms[0]:
                    continue  # it has ended, or may just not be due yet
                logger.warning("session %s is silent for %d ms: expelled", session, still_ms)
                await self._expel(Expel(session, "its keep-alives stopped", renewals))
        except Exception as error:
            silent_sessions.forget()
            self._log_failure(error, "look at a silent session")

    async def _find_deadlocks_if_due(self) -> None:
        """Look whether a claim that waits too long is part of a deadlock, and end it."""
        session = self._session
        at_ms = session.deadlock_at_ms
        if at_ms is None or self._runtime.now_ms() < max(at_ms, self._searching.at_ms):
            return

        async def send(command: Command) -> Reply:
            await self._renew_if_due()  # a look may take many requests
            return await self._wire.send(command, self._budget_ms())

        began_ms = self._runtime.now_ms()
        try:
            start = session.start_of_deadlock_look()
            now_ms = self._runtime.now_ms
            for cycle in await deadlock.look(send, start, now_ms) if start else ():
                logger.warning("deadlock: %s", "; ".join(cycle.lines))
                await deadlock.end(send, cycle)
        except Exception as error:
            self._failed(error, "look for deadlocks", self._searching)
        else:
            self._succeeded("look for deadlocks", self._searching)
        if session.deadlock_at_ms is not None:
            # Long lines take long to look at: that must not be all we do.
            ended_ms = self._runtime.now_ms()
            rest_ms = LOOKING_SHARE * (ended_ms - began_ms)
            session.deadlock_at_ms = max(session.deadlock_at_ms, ended_ms + rest_ms)

    async def _list(self, proof: Proof) -> None:
        """The store's account differs from ours: find out in what."""
        session = self._session
        sent_ms = self._runtime.now_ms()
        reply = await self._wire.send(Claims(session.id), self._budget_ms())
        if isinstance(reply, ClaimsReply):
            session.reconcile(proof, reply.claims, sent_ms)

    async def _give_back(self) -> None:
        """Send leave for every abandoned claim, until answered or the session is over."""
        session = self._session
        session.take_back_dropped()
        while (item := session.next_in_outbox()) is not None:
            if self._runtime.now_ms() < self._giving_back.at_ms:
                return
            n, command = item
            sent_ms = self._runtime.now_ms()
            try:
                if session.snapshot.opened or await self._open():
                    reply = await self._wire.send(command, self._budget_ms())
                    if isinstance(command, Convert):
                        session.conversion_taken_back(command, reply, sent_ms)
            except Exception as error:
                self._failed(error, "leave", self._giving_back)
                return
            session.given_back(n, command)
            self._succeeded("leave", self._giving_back)

    async def _open(self) -> bool:
        """Make sure the store has the session, so that a leave that overtakes its enter counts."""
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

    def _notice_ends(self) -> None:
        session = self._session
        if session.has_bounded() and session.alive():
            for holding in session.outlived(self._runtime.now_ms()):
                session.outlive(holding)

    async def _listen(self) -> list[Wake]:
        """Wait until something is due, and return what was heard."""
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
        """Find out what a wake is about."""
        session = self._session
        try:
            if wake.what == WAKE_EVENTS:
                for changed in list(session.events_changed):
                    changed()
            elif wake.what == WAKE_WANTED:
                session.wanted(wake.n)
            elif wake.what == WAKE_MISSED:
                # A keep-alive sent at once finds what changed for claims that hold or wait;
                # a claim whose enter is under way is looked at once it is known to wait.
                session.wakes_missed()
                self._renew_at_ms = self._runtime.now_ms()
            elif wake.what == WAKE_DIED:
                await self._expel(Expel(wake.session, PROCESS_DIED))
            else:
                await self._look(wake.n)
        except Exception as error:
            # The next keep-alive finds out what this wake was about.
            self._log_failure(error, "look")

    async def _look(self, n: int) -> None:
        session = self._session
        sent_ms = self._runtime.now_ms()
        reply = await self._wire.send(Look(session.id, n), self._budget_ms())
        if isinstance(reply, Ended):
            session.end_as_told(reply)
        elif isinstance(reply, Granted | Queued) or (isinstance(reply, Gone) and n):
            session.look_over(n, reply, sent_ms)

    async def _expel(self, command: Expel) -> None:
        """End the session of another client."""
        await end_session(self._runtime, self._wire.send, command, self._budget_ms())

    async def _close(self, command: Command) -> None:
        """End the session in the store, if it can be reached in time."""
        session = self._session
        if not session.was_sent():
            return
        try:
            opening = session.opening()
            if opening is not None:
                # A caller's Open may still be on its way, and would create the session after
                # we have closed nothing. Once opened and closed, it cannot be opened again.
                await self._wire.send(opening, CLOSE_MS)
            await end_session(self._runtime, self._wire.send, command, CLOSE_MS)
        except Exception as error:
            self._log_failure(error, "keep-alive" if isinstance(command, Expel) else "close")
