"""The events of acquires, leases and sessions. Imported only when there is something to emit.

A lease is reported from the moment its acquire returns: `Holding.held_us` is set then, and
whatever ends the lease first, on whichever thread, clears it under the session's mutex and
reports the end. So each `AcquireGranted` is followed by exactly one `LeaseReleased` or
`LeaseLost`, in this order.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from lockfast import events as e
from lockfast.core.commands import Inspect, Queued, ResourceView
from lockfast.core.modes import LOCK, SEMAPHORE, TREE
from lockfast.core.reasons import LOST_CLOSED, LOST_REVOKED
from lockfast.errors import (
    AcquireTimeoutError,
    DeadlockError,
    LeaseLostError,
    LockfastError,
    StoreError,
)
from lockfast.flow.holding import HELD, INTENTS, Holding

if TYPE_CHECKING:
    from lockfast.flow.client import Core
    from lockfast.flow.retained import RetainedLock, Use
    from lockfast.flow.session_claims import SessionClaims
    from lockfast.flow.session_life import SessionLife

TRACE: Final = "traceparent="
"""Begins the value of a claim that carries the trace context of its holder."""
QUEUE_READ_MS: Final = 250
"""How long the position of a queued claim may be asked for; the claim waits meanwhile."""
_TRACED_KINDS: Final = (LOCK, TREE, SEMAPHORE)
"""The values of other kinds belong to the application."""


# ── acquires ─────────────────────────────────────────────────────────────────────────


async def acquire(core: Core, holding: Holding, timeout_ms: int | None) -> bool:
    """As `flow.acquire.acquire`, reporting how it begins and ends."""
    from lockfast.flow.acquire import obtain

    emitter = core.emitter
    began_us = emitter.now_us()
    subject = holding.subject = _subject(holding)
    holding.being_granted = True
    if emitter.tracer is not None:
        _begin_trace(core, holding, subject)
    emitter.emit(e.AcquireBegun(began_us, emitter.source, subject, timeout_ms, holding.trace))
    try:
        got = await obtain(core, holding, timeout_ms)
    except BaseException as error:
        _report_failure(core, holding, began_us, _why(error), _told(error))
        raise
    if not got:
        holding.contended = True
        _report_failure(core, holding, began_us, e.GAVE_UP_BUSY, "")
        return False
    session = holding.session
    assert session is not None
    now_us = emitter.now_us()
    emitter.emit(
        e.AcquireGranted(
            now_us,
            emitter.source,
            subject,
            session.id,
            holding.n,
            holding.token,
            now_us - began_us,
            holding.contended,
            holding.queue_length,
            holding.trace,
        )
    )
    with session.mutex:
        holding.being_granted = False
        holding.held_us = now_us
        has_ended = holding.phase is not HELD
    if has_ended:
        session.report_end(holding)
    return True


def _subject(holding: Holding) -> e.Subject:
    places = [place for place in holding.ask.places if place.mode not in INTENTS]
    first = places[0]
    return e.Subject(first.kind, holding.ask.name, first.mode, holding.actor)


def _begin_trace(core: Core, holding: Holding, subject: e.Subject) -> None:
    tracer = core.emitter.tracer
    assert tracer is not None
    holding.trace = trace = tracer.begin(subject)
    if holding.ask.value is None and subject.kind in _TRACED_KINDS:
        context = tracer.context(trace)
        if context:
            holding.ask = holding.ask._replace(value=TRACE + context)


def _report_failure(core: Core, holding: Holding, began_us: int, why: str, told: str) -> None:
    emitter = core.emitter
    now_us = emitter.now_us()
    assert holding.subject is not None
    emitter.emit(
        e.AcquireGaveUp(
            now_us,
            emitter.source,
            holding.subject,
            why,
            now_us - began_us,
            holding.contended,
            told,
            holding.trace,
        )
    )


def _why(error: BaseException) -> str:
    if isinstance(error, AcquireTimeoutError):
        return e.GAVE_UP_TIMEOUT
    if isinstance(error, DeadlockError):
        return e.GAVE_UP_DEADLOCK
    if isinstance(error, LeaseLostError):
        return e.GAVE_UP_REVOKED
    if isinstance(error, StoreError):
        return e.GAVE_UP_UNAVAILABLE
    return e.GAVE_UP_REFUSED if isinstance(error, LockfastError) else e.GAVE_UP_CANCELLED


def _told(error: BaseException) -> str:
    return str(error) if isinstance(error, LockfastError) else type(error).__name__


async def report_queued(core: Core, holding: Holding, reply: Queued | None) -> None:
    """Report that a claim has to wait, and where: costs one read of its queue.

    If the claim is granted before that, the traces of those it waited for are not known.
    """
    if holding.contended:
        return  # it enters again, after its session ended
    holding.contended = True
    emitter = core.emitter
    at_us = emitter.now_us()
    session = holding.session
    assert session is not None
    if holding.ask.block > 1:
        return  # the local users of a retained lock are reported, not the claim behind them
    view = await _queue(core, holding) if reply is not None else None
    owners = tuple(blocker.owner for blocker in holding.ahead if blocker.held)
    traces: tuple[str, ...] = ()
    position = None
    if view is not None:
        position = holding.queue_length = max(1, view.waiting_count)
        own = (session.id, holding.n)
        if own not in [(claim.session, claim.n) for claim in view.holders]:
            owners = tuple(claim.owner for claim in view.holders)
            values = [claim.value for claim in view.holders if claim.value]
            traces = tuple(value[len(TRACE) :] for value in values if value.startswith(TRACE))
    subject = holding.subject or _subject(holding)
    emitter.emit(
        e.AcquireQueued(
            at_us,
            emitter.source,
            subject,
            session.id,
            holding.n,
            position,
            owners,
            traces,
            holding.trace,
        )
    )


async def _queue(core: Core, holding: Holding) -> ResourceView | None:
    place = next(place for place in holding.ask.places if place.mode not in INTENTS)
    try:
        view = await core.wire.send(Inspect(place.kind, place.name, 1), QUEUE_READ_MS)
    except LockfastError:
        return None
    return view if isinstance(view, ResourceView) else None


# ── leases ───────────────────────────────────────────────────────────────────────────


def report_released(session: SessionClaims, holding: Holding, held_us: int) -> None:
    emitter = session.emitter
    now_us = emitter.now_us()
    assert holding.subject is not None
    emitter.emit(
        e.LeaseReleased(
            now_us,
            emitter.source,
            holding.subject,
            session.id,
            holding.n,
            holding.token,
            now_us - held_us,
            holding.trace,
        )
    )


def report_lost(session: SessionClaims, holding: Holding, held_us: int | None, why: str) -> None:
    """Report and log the loss of a lease; if its client was closed, it was released."""
    emitter = session.emitter
    if why == LOST_CLOSED:
        if held_us is not None:
            report_released(session, holding, held_us)
        return
    now_us = emitter.now_us()
    # A lease acquired before anybody observed is still logged when it is lost.
    since_us = holding.granted_at_ms * 1000 if held_us is None else held_us
    subject = holding.subject or _subject(holding)
    claim = (now_us, emitter.source, subject, session.id, holding.n, holding.token)
    if why == LOST_REVOKED:
        emitter.emit(e.LeaseRevoked(*claim, holding.by, holding.reason, holding.trace))
    reason = f"{holding.reason} (by {holding.by})" if holding.by else holding.reason
    emitter.emit_and_log(e.LeaseLost(*claim, why, reason, max(0, now_us - since_us), holding.trace))


def report_uncertain(session: SessionClaims, held: list[Holding]) -> None:
    emitter = session.emitter
    now_us = emitter.now_us()
    for holding in held:
        if holding.subject is None:
            continue  # acquired before anybody observed
        left_us = max(0, session.deadline_of(holding) * 1000 - now_us)
        claim = (now_us, emitter.source, holding.subject, session.id, holding.n, holding.token)
        emitter.emit(e.LeaseUncertain(*claim, left_us, holding.trace))


async def convert(core: Core, holding: Holding, mode: str, timeout_ms: int | None) -> None:
    """As `flow.convert.convert`, reporting a conversion that succeeded."""
    from lockfast.flow.convert import change_mode

    emitter = core.emitter
    began_us = emitter.now_us()
    former_mode, former_token = holding.mode, holding.token
    await change_mode(core, holding, mode, timeout_ms)
    session = holding.session
    assert session is not None
    subject = holding.subject or _subject(holding)
    holding.subject = subject = subject._replace(mode=mode)
    now_us = emitter.now_us()
    emitter.emit(
        e.LeaseConverted(
            now_us,
            emitter.source,
            subject,
            session.id,
            holding.n,
            holding.token,
            former_mode,
            former_token,
            now_us - began_us,
            holding.trace,
        )
    )


# ── retained locks ───────────────────────────────────────────────────────────────────


class ObservedUse:
    """What is known of one use of a retained lock, until it is reported as ended."""

    __slots__ = ("held_us", "subject", "trace")

    def __init__(self, subject: e.Subject, trace: Any) -> None:
        self.subject = subject
        self.trace = trace
        self.held_us = 0


async def acquire_use(lock: RetainedLock, core: Core, timeout_ms: int | None, use: Use) -> Use:
    """As `RetainedLock.acquire`, reporting how it begins and ends."""
    emitter = core.emitter
    began_us = emitter.now_us()
    subject = _subject(lock.nothing)._replace(actor=use.actor)
    trace = emitter.tracer.begin(subject) if emitter.tracer is not None else None
    observed = ObservedUse(subject, trace)
    source = emitter.source
    emitter.emit(e.AcquireBegun(began_us, source, subject, timeout_ms, trace))
    try:
        await lock.admit(timeout_ms, use)
    except BaseException as error:
        now_us = emitter.now_us()
        why = _why(error)
        if why == e.GAVE_UP_TIMEOUT and timeout_ms == 0:
            why = e.GAVE_UP_BUSY
        waited_us = now_us - began_us
        gave_up = e.AcquireGaveUp(
            now_us, source, subject, why, waited_us, use.waited, _told(error), trace
        )
        emitter.emit(gave_up)
        raise
    holding = use.holding
    assert holding is not None
    assert holding.session is not None
    now_us = emitter.now_us()
    session, n, token = holding.session.id, holding.n, use.token
    granted = e.AcquireGranted(
        now_us, source, subject, session, n, token, now_us - began_us, use.waited, 0, trace
    )
    emitter.emit(granted)
    observed.held_us = now_us
    use.observed = observed
    return use


def report_use_ended(core: Core, use: Use, observed: ObservedUse, lost: bool) -> None:
    """Report that a local user of a retained lock released or lost it."""
    holding = use.holding
    assert holding is not None
    assert holding.session is not None
    emitter = core.emitter
    now_us = emitter.now_us()
    claim = (now_us, emitter.source, observed.subject, holding.session.id, holding.n, use.token)
    hold_us = now_us - observed.held_us
    if lost and holding.why != LOST_CLOSED:
        reason = holding.reason
        emitter.emit_and_log(e.LeaseLost(*claim, holding.why, reason, hold_us, observed.trace))
    else:
        emitter.emit(e.LeaseReleased(*claim, hold_us, observed.trace))


def report_retained(core: Core, holding: Holding) -> None:
    emitter = core.emitter
    assert holding.session is not None
    holding.held_us = now_us = emitter.now_us()
    session, n, token = holding.session.id, holding.n, holding.token
    subject = holding.subject = _subject(holding)
    emitter.emit(e.LockRetained(now_us, emitter.source, subject, session, n, token))


def report_returned(session: SessionClaims, holding: Holding, held_us: int) -> None:
    emitter = session.emitter
    now_us = emitter.now_us()
    subject = holding.subject or _subject(holding)
    emitter.emit(
        e.RetainedReturned(now_us, emitter.source, subject, session.id, holding.n, now_us - held_us)
    )


# ── sessions ─────────────────────────────────────────────────────────────────────────


def report_opened(session: SessionLife) -> None:
    emitter = session.emitter
    emitter.emit(e.SessionOpened(emitter.now_us(), emitter.source, session.id, session.ttl_ms))


def report_session_ended(session: SessionLife) -> None:
    emitter, snapshot = session.emitter, session.snapshot
    emitter.emit(
        e.SessionEnded(emitter.now_us(), emitter.source, session.id, snapshot.ended, snapshot.by)
    )


def report_renewed(session: SessionLife, sent_us: int, held: int, waiting: int) -> None:
    emitter = session.emitter
    now_us = emitter.now_us()
    emitter.emit(
        e.SessionRenewed(now_us, emitter.source, session.id, now_us - sent_us, held, waiting)
    )


def report_keep_alive_failed(session: SessionLife, sent_us: int, error: Exception) -> None:
    emitter = session.emitter
    now_us = emitter.now_us()
    left_us = max(0, session.snapshot.deadline_ms * 1000 - now_us)
    emitter.emit(
        e.KeepAliveFailed(now_us, emitter.source, session.id, now_us - sent_us, left_us, str(error))
    )


def report_deadlock(session: SessionLife, lines: tuple[str, ...], victim: str) -> None:
    emitter = session.emitter
    emitter.emit_and_log(
        e.DeadlockFound(emitter.now_us(), emitter.source, session.id, lines, victim)
    )
