"""Acquire and release a claim: the part that runs in the caller's thread or task."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, Final

from lockfast.core.commands import (
    WHY_CLAIMS_FULL,
    WHY_DEADLOCK,
    WHY_LIMIT_DIFFERS,
    WHY_QUEUE_FULL,
    WHY_TOO_LARGE,
    Blocker,
    Busy,
    Done,
    Ended,
    Expel,
    Gone,
    Granted,
    Inspect,
    Leave,
    Queued,
    Refused,
    Reply,
    ResourceView,
)
from lockfast.core.modes import PERMIT
from lockfast.core.reasons import LOST_CLOSED, NO_RECORD
from lockfast.errors import (
    AHEAD_COUNTED_MAX,
    SURELY_NOT_DONE,
    AcquireTimeoutError,
    DeadlockError,
    LeaseLostError,
    LimitError,
    LockfastError,
    OutcomeUnknownError,
    StoreBusyError,
    StoreError,
    StoreUnavailableError,
    UnsupportedError,
)
from lockfast.flow.contention import back_off, contend
from lockfast.flow.ending import end_session
from lockfast.flow.holding import (
    HELD,
    RELEASED,
    WAITING,
    Holding,
    LeaseState,
    full_span_ms,
    own_conflict,
)
from lockfast.flow.log import logger
from lockfast.flow.retry import RETRY_MS, Retry
from lockfast.flow.session import RENEWALS_PER_TTL, Session
from lockfast.flow.session_claims import IS_LOST
from lockfast.ports import PROCESS_DIED

if TYPE_CHECKING:
    from lockfast.flow.client import Core

RETRY_MS_MAX: Final = 1000
NEVER_MS: Final = 1 << 60
RELEASE_MS: Final = 5000
GIVE_UP_MS: Final = 250
"""How long after its timeout an acquire may still take to leave the queue and name holders."""
FORKED: Final = "the process was forked, and leases stay with the parent process"


def acquire(core: Core, holding: Holding, timeout_ms: int | None) -> Coroutine[Any, Any, bool]:
    """As `obtain`, and tell observers."""
    if core.emitter.observer is None:
        return obtain(core, holding, timeout_ms)
    from lockfast.flow import observed

    return observed.acquire(core, holding, timeout_ms)


async def obtain(core: Core, holding: Holding, timeout_ms: int | None) -> bool:
    """Wait until `holding` is held. Return False if `timeout_ms` is 0 and the lock is taken.

    On any exception the claim is removed from the store, even if its outcome is unknown.
    Raises AcquireTimeoutError after `timeout_ms`.
    """
    runtime = core.runtime
    until_ms = None if timeout_ms is None else runtime.now_ms() + timeout_ms
    was_queued = False
    try:
        while True:
            reply = await _enter(core, holding, timeout_ms, until_ms, was_queued)
            if isinstance(reply, Busy):
                if await _expel_the_dead(core, holding, reply.ahead):
                    continue
                holding.ahead = reply.ahead
                if timeout_ms == 0 or not core.contends:
                    return False
                if core.emitter.observer is not None:
                    await _report_queued(core, holding, None)
                await _back_off(core, holding, reply, timeout_ms, until_ms)
                was_queued = True
                continue
            was_queued = True
            if not isinstance(reply, Granted):
                if core.emitter.observer is not None:
                    await _report_queued(core, holding, reply)
                if not await _wait(core, holding, timeout_ms, until_ms):
                    continue
            # While the reply was in flight the session may have ended or the claim may have
            # been revoked. Never return a lease that is already lost.
            session = holding.session
            assert session is not None
            if session.state_of(holding) is IS_LOST:
                _enter_again(session, holding)
                continue
            if core.lock_order is not None:
                core.lock_order.took(core, holding)
            return True
    except BaseException:
        session = holding.session
        if session is not None and holding.may_be_stored:
            session.release_later(holding)
        elif session is not None:
            session.released(holding)
            session.end_if_unused()
        raise


async def _report_queued(core: Core, holding: Holding, reply: Queued | None) -> None:
    from lockfast.flow import observed

    await observed.report_queued(core, holding, reply)


async def _enter(
    core: Core,
    holding: Holding,
    timeout_ms: int | None,
    until_ms: int | None,
    was_queued: bool = False,
) -> Granted | Queued | Busy:
    """Send `Enter` for the claim, in a live session.

    Raises StoreUnavailableError if the store is unreachable for `connect_timeout`. A claim
    that `was_queued`, and lost its place when its session ended, retries until `until_ms`; so
    does one that a store in operation has no time for.
    """
    runtime = core.runtime
    session = core.enlist(holding)
    sent_ms = runtime.now_ms()
    end_ms = until_ms if until_ms is not None and timeout_ms else NEVER_MS
    retry = Retry(runtime, end_ms if was_queued else min(sent_ms + core.connect_timeout_ms, end_ms))
    retry_ms = RETRY_MS
    while True:
        opening = None if session.snapshot.opened else session.opening()
        was_stored = holding.may_be_stored
        holding.may_be_stored = True
        try:
            reply = await core.wire.send(
                contend(core, holding, opening)
                if timeout_ms != 0 and core.contends
                else holding.enter(timeout_ms != 0, opening),
                min(retry.left_ms(sent_ms), core.connect_timeout_ms),
            )
        except LockfastError as error:
            if isinstance(error, (*SURELY_NOT_DONE, UnsupportedError)):
                holding.may_be_stored = was_stored
                if opening is not None:
                    session.opening_refused()
            if not isinstance(error, StoreUnavailableError | OutcomeUnknownError):
                raise
            if (
                isinstance(error, StoreBusyError)
                and timeout_ms != 0
                and not core.emitter.outage.failures
            ):
                sent_ms = runtime.now_ms()
                if sent_ms >= end_ms:
                    raise _no_answer(holding, timeout_ms, error) from error
                if not was_queued:
                    retry = Retry(runtime, min(sent_ms + core.connect_timeout_ms, end_ms))
                if not session.alive():
                    session = core.enlist(holding)
                continue
            # Resending is safe: the store recognizes the claim by its number.
            trouble = error if timeout_ms == 0 else retry.failed(error, retry_ms)
            core.emitter.outage.failed(error, raised=trouble is not None)
            if trouble is not None:
                if was_queued:
                    raise _no_answer(holding, timeout_ms, trouble) from error
                raise trouble from error.__cause__
            await runtime.signal().wait(retry_ms)
            if was_queued:
                retry_ms = min(2 * retry_ms, RETRY_MS_MAX)
            if not session.alive():
                session = core.enlist(holding)
            sent_ms = runtime.now_ms()
            continue
        if core.emitter.outage.failures:
            core.emitter.outage.ended()
        if isinstance(reply, Ended):
            session.ended_by_store(reply)
            logger.warning(
                "%s; re-entering the queue of %r", session.snapshot.ended, holding.ask.name
            )
            session = core.enlist(holding)
            sent_ms = runtime.now_ms()
            continue
        if opening is not None and not isinstance(reply, Refused):
            # The store may have refused the session itself; then the next claim opens it again.
            session.opened()
        if isinstance(reply, Granted):
            session.granted(holding, reply, sent_ms)
            return reply
        if isinstance(reply, Queued):
            session.queued(holding, reply)
            return reply
        session.released(holding)
        if isinstance(reply, Busy):
            return reply
        if isinstance(reply, Refused):
            raise refusal(f"claim on {holding.ask.name!r}", reply)
        raise StoreError(core.store.label, f"answered {reply!r} to enter")


def _no_answer(holding: Holding, timeout_ms: int | None, trouble: Exception) -> AcquireTimeoutError:
    """Return the error of a claim that could not enter before its timeout."""
    return AcquireTimeoutError(holding.ask.name, (timeout_ms or 0) / 1000, trouble=str(trouble))


async def _expel_the_dead(core: Core, holding: Holding, ahead: tuple[Blocker, ...]) -> bool:
    """Expel blockers whose process has exited. Return True if any were expelled.

    The caller can then retry. Needed only for `try_acquire()` and stores without a queue;
    for queued claims the keeper does this.
    """
    session = holding.session
    assert session is not None
    try:
        dead = session.listener.dead(ahead)
        for other in dead:
            await end_session(
                core.runtime, core.wire.send, Expel(other, PROCESS_DIED), core.connect_timeout_ms
            )
    except Exception as error:
        # Report the lock as busy, since its holder may be alive.
        logger.warning("cannot expel dead sessions ahead of %r: %s", holding.ask.name, error)
        return False
    return bool(dead)


async def _back_off(
    core: Core, holding: Holding, busy: Busy, timeout_ms: int | None, until_ms: int | None
) -> None:
    """Wait for the next attempt at a store without a queue."""
    if timeout_ms is None:
        _refuse_own_deadlock(core, holding)
    left_ms = None if until_ms is None else until_ms - core.runtime.now_ms()
    if left_ms is not None and left_ms <= 0:
        holders = tuple(
            _describe(b.owner or b.session, b.token, b.for_ms, holding) for b in busy.ahead
        )
        raise AcquireTimeoutError(holding.ask.name, (timeout_ms or 0) / 1000, holders=holders)
    await back_off(holding, busy, left_ms)


async def _wait(core: Core, holding: Holding, timeout_ms: int | None, until_ms: int | None) -> bool:
    """Wait in the queue. Return False if the claim lost its place and must enter again."""
    runtime = core.runtime
    session = holding.session
    assert session is not None
    if timeout_ms is None:
        _refuse_own_deadlock(core, holding)
    signal = holding.changed = runtime.signal()
    try:
        while True:
            # Read the phase once: another thread may change it between two reads.
            phase = holding.phase
            if phase is HELD:
                return True
            if phase is not WAITING:
                return _enter_again(session, holding)
            left_ms = None if until_ms is None else until_ms - runtime.now_ms()
            if left_ms is not None and left_ms <= 0:
                given_up = await _give_up(core, session, holding, timeout_ms or 0)
                if given_up is not None:
                    raise given_up
                continue
            await signal.wait(left_ms)
    finally:
        holding.changed = None


def _refuse_own_deadlock(core: Core, holding: Holding) -> None:
    """Raise DeadlockError if the caller already holds this lock."""
    if not holding.actor:
        return  # a retained claim: local leases that conflict with it are released on request
    held = [other for session in core.sessions() for other in session.held_by(holding.actor)]
    own = own_conflict(held, holding)
    if own is not None:
        raise DeadlockError(
            holding.ask.name,
            (f"{holding.actor} already holds {own.ask.name!r} (token {own.token})",),
            "release it first, use reentrant=True, or pass a timeout",
        )


def _enter_again(session: Session, holding: Holding) -> bool:
    """Return False if the claim should enter the queue again, else raise why it must not."""
    if holding.reason == WHY_DEADLOCK:
        raise DeadlockError(holding.ask.name, tuple(holding.by.split("\n")))
    if not session.snapshot.ended and holding.by:
        raise LeaseLostError(
            holding.ask.name, None, holding.reason, session=session.id, by=holding.by
        )
    if holding.why != LOST_CLOSED:
        logger.warning(
            "claim on %r lost its place in the queue: %s; re-entering",
            holding.ask.name,
            holding.reason,
        )
    return False


async def _give_up(
    core: Core, session: Session, holding: Holding, timeout_ms: int
) -> AcquireTimeoutError | None:
    """Leave the queue. Return the error that names the holders and counts the claims ahead.

    Return None if the claim was granted at the last moment. Sends two requests and takes at
    most GIVE_UP_MS. If the store does not reply, the keeper sends `Leave` later, and the error
    contains what the store reported last.
    """
    holders, ahead = who_is_ahead(holding)
    left = False
    until_ms = core.runtime.now_ms() + GIVE_UP_MS
    try:
        if session.snapshot.confirmed:
            if len(holding.ask.places) == 1:
                kind, name = holding.ask.places[0][:2]
                view = await core.wire.send(Inspect(kind, name, AHEAD_COUNTED_MAX), GIVE_UP_MS)
                if isinstance(view, ResourceView):
                    holders, ahead = _who_is_ahead_in(view, holding)
            if holding.phase is HELD:
                return None
            left_ms = max(1, until_ms - core.runtime.now_ms())
            await core.wire.send(Leave(session.id, holding.n, holding.ask.places), left_ms)
            session.released(holding)
            left = True
    except StoreError:
        pass  # the keeper sends Leave, and the error below says so (leaving=True)
    if not left:
        session.release_later(holding)
    return AcquireTimeoutError(
        holding.ask.name, timeout_ms / 1000, holders=holders, ahead=ahead, leaving=not left
    )


def who_is_ahead(holding: Holding) -> tuple[tuple[str, ...], int | None]:
    """Describe the holders directly ahead of a claim, and count the waiters ahead, if known."""
    holders = tuple(
        _describe(b.owner or b.session, b.token, b.for_ms, holding) for b in holding.ahead if b.held
    )
    waiting = sum(not b.held for b in holding.ahead)
    return holders, waiting or None


def _who_is_ahead_in(view: ResourceView, holding: Holding) -> tuple[tuple[str, ...], int | None]:
    holders = tuple(
        _describe(claim.owner or claim.session, claim.token, claim.for_ms, holding)
        for claim in view.holders
    )
    session = holding.session
    own = (session.id if session is not None else "", holding.n)
    places = [claim[:2] for claim in view.waiting]
    if own in places:
        return holders, places.index(own)
    return holders, AHEAD_COUNTED_MAX if len(places) >= AHEAD_COUNTED_MAX else None


def _describe(owner: str, token: int, for_ms: int, holding: Holding) -> str:
    """Describe one holder for an error message; a permit has no token."""
    if holding.mode == PERMIT:
        return f"{owner} (for {for_ms / 1000:.1f} s)"
    return f"{owner} (token {token}, for {for_ms / 1000:.1f} s)"


def refusal(what: str, reply: Refused) -> LockfastError:
    """Return the error for a claim or session that the store refused."""
    if reply.why == WHY_LIMIT_DIFFERS:
        return LimitError(
            f"the limit of semaphore {reply.detail!r}",
            reply.value,
            reply.limit,
            "use that limit, or resize() the semaphore",
            text=f"semaphore {reply.detail!r} is in use with limit={reply.limit}, "
            f"not {reply.value}",
        )
    if reply.why in (WHY_QUEUE_FULL, WHY_CLAIMS_FULL, WHY_TOO_LARGE):
        full = f"the queue of {reply.detail!r}" if reply.why == WHY_QUEUE_FULL else reply.detail
        return LimitError(full, reply.value, reply.limit)
    return StoreError("lockfast", f"{what} refused: {reply.why}: {reply.detail}")


async def release(core: Core, holding: Holding, close_ms: int = 0) -> None:
    """Release the lease. Calling it again has no effect, even while the first call is under way.

    Raises LeaseLostError if the lease was already lost. Raises OutcomeUnknownError if the
    store did not reply; the keeper then retries until the lease expires.
    """
    session = holding.session
    assert session is not None
    if session.state_of(holding) is IS_LOST:
        check_process(holding)
        session.work_has_stopped(holding)
        raise lost_error(holding)
    if holding.phase is RELEASED:
        return
    try:
        with session.mutex:
            if holding.leaving:
                return
            holding.leaving = True
        reply: Reply = await core.wire.send(
            Leave(session.id, holding.n, holding.ask.places, full_span_ms(close_ms)),
            # While this request is pending the keeper goes on renewing the lease, so others
            # wait. Pass it to the keeper after one renewal interval.
            min(RELEASE_MS, session.ttl_ms // RENEWALS_PER_TTL),
        )
        if isinstance(reply, Done) and reply.found:
            session.released(holding)
            return
        if isinstance(reply, Ended):
            session.ended_by_store(reply)
        elif isinstance(reply, Gone):
            session.lost(holding, reply.reason, reply.by)
        else:
            session.lost(holding, NO_RECORD)
    except StoreError as error:
        session.release_later(holding, close_ms)
        left_s = max(0, session.deadline_of(holding) - session.runtime.now_ms()) / 1000
        raise OutcomeUnknownError(
            core.store.label,
            f"release of {holding.ask.name!r} (token {holding.token}) may not have arrived",
            f"it is retried in the background, and the lease expires within {left_s:.1f} s",
        ) from error
    except BaseException:
        session.release_later(holding, close_ms)
        raise
    raise lost_error(holding)


def check(holding: Holding) -> None:
    """Raise LeaseLostError unless the lease is held now, by the local clock."""
    session = holding.session
    assert session is not None
    check_process(holding)
    if session.state_of(holding) in (IS_LOST, LeaseState.RELEASED):
        raise lost_error(holding)


def check_process(holding: Holding) -> None:
    session = holding.session
    assert session is not None
    if session.process != session.runtime.process():
        raise LeaseLostError(holding.ask.name, holding.token, FORKED, session=session.id)


def lost_error(holding: Holding) -> LeaseLostError:
    """Return the error to raise for a lease that has ended."""
    session = holding.session
    assert session is not None
    if holding.phase is RELEASED:
        return LeaseLostError(holding.ask.name, holding.token, "it was released")
    ago_ms = None
    if holding.lost_ms is not None:
        ago_ms = session.runtime.now_ms() - holding.lost_ms
    reason = holding.reason + (f" (by {holding.by})" if holding.by else "")
    return LeaseLostError(
        holding.ask.name,
        holding.token,
        reason,
        session=session.id,
        by=holding.by,
        ago_ms=ago_ms,
    )
