"""Taking and giving back: the callers' side of a claim."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

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
from lockfast.errors import (
    SURELY_NOT_DONE,
    AcquireTimeoutError,
    DeadlockError,
    LeaseLostError,
    LimitError,
    LockfastError,
    OutcomeUnknownError,
    StoreError,
    StoreUnavailableError,
    UnsupportedError,
)
from lockfast.flow.contention import back_off, contends, entering
from lockfast.flow.ending import end_session
from lockfast.flow.holding import HELD, RELEASED, WAITING, Holding, LeaseState, own_conflict
from lockfast.flow.log import logger
from lockfast.flow.presence import LOST
from lockfast.flow.retry import RETRY_MS, Retry
from lockfast.flow.session import RENEWALS_PER_TTL, Session
from lockfast.ports import PROCESS_DIED

if TYPE_CHECKING:
    from lockfast.flow.client import Core

RETRY_MS_MAX: Final = 1000
NEVER_MS: Final = 1 << 60
RELEASE_MS: Final = 5000
GIVE_UP_MS: Final = 250
"""How much later than its timeout an acquire may raise, to leave the queue and say why."""
QUEUE_READ_MAX: Final = 1000
"""As much of a queue as is read to tell a claim its place in it."""
FORKED: Final = "the process was forked and its leases stay with the parent"


async def acquire(core: Core, holding: Holding, timeout_ms: int | None) -> bool:
    """Wait until `holding` is held; False if `timeout_ms` is 0 and it is not to be had.

    On any exception the claim is given back, also when its outcome is not known.
    Raises AcquireTimeoutError after `timeout_ms`.
    """
    runtime = core.runtime
    until_ms = None if timeout_ms is None else runtime.now_ms() + timeout_ms
    was_queued = False
    try:
        while True:
            reply = await _enter(core, holding, timeout_ms, until_ms, was_queued)
            if isinstance(reply, Busy):
                if await _end_the_dead(core, holding, reply.ahead):
                    continue
                holding.ahead = reply.ahead
                if not contends(core, timeout_ms):
                    return False
                await _back_off(core, holding, reply, timeout_ms, until_ms)
                was_queued = True
                continue
            was_queued = True
            if not isinstance(reply, Granted) and not await _wait(
                core, holding, timeout_ms, until_ms
            ):
                continue
            # While the answer was on its way the session may have ended, or the claim may
            # have been revoked: nobody is let in with a lease that is lost already.
            session = holding.session
            assert session is not None
            if session.state_of(holding) is LOST:
                _enter_again(session, holding)
                continue
            if core.lock_order is not None:
                core.lock_order.took(core, holding)
            return True
    except BaseException:
        session = holding.session
        if session is not None and holding.may_be_stored:
            session.abandon(holding)
        elif session is not None:
            session.forget(holding)
            session.end_if_unused()
        raise


async def _enter(
    core: Core,
    holding: Holding,
    timeout_ms: int | None,
    until_ms: int | None,
    was_queued: bool = False,
) -> Granted | Queued | Busy:
    """Put the claim in line, in a session that lives.

    A store that cannot be reached is an error after `connect_timeout`; but a claim that
    `was_queued`, and lost its place with its session, tries again until `until_ms`.
    """
    runtime = core.runtime
    session = core.enlist(holding)
    sent_ms = runtime.now_ms()
    give_up_ms = sent_ms + core.connect_timeout_ms
    if was_queued:
        give_up_ms = until_ms if until_ms is not None else NEVER_MS
    elif until_ms is not None and timeout_ms:
        give_up_ms = min(give_up_ms, until_ms)
    retry = Retry(runtime, give_up_ms)
    retry_ms = RETRY_MS
    while True:
        opening = None if session.snapshot.opened else session.opening()
        was_stored = holding.may_be_stored
        holding.may_be_stored = True
        try:
            reply = await core.wire.send(
                entering(core, holding, timeout_ms, opening),
                min(retry.left_ms(sent_ms), core.connect_timeout_ms),
            )
        except LockfastError as error:
            if isinstance(error, (*SURELY_NOT_DONE, UnsupportedError)):
                holding.may_be_stored = was_stored
                if opening is not None:
                    session.opening_refused()
            if not isinstance(error, StoreUnavailableError | OutcomeUnknownError):
                raise
            # Both are safe to send again: the claim's number makes it one claim.
            trouble = error if timeout_ms == 0 else retry.failed(error, retry_ms)
            if trouble is not None:
                if was_queued:
                    name, timeout = holding.ask.name, (timeout_ms or 0) / 1000
                    raise AcquireTimeoutError(name, timeout, trouble=str(trouble)) from error
                raise trouble from error.__cause__
            await runtime.signal().wait(retry_ms)
            if was_queued:
                retry_ms = min(2 * retry_ms, RETRY_MS_MAX)
            if not session.alive():
                session = core.enlist(holding)
            sent_ms = runtime.now_ms()
            continue
        if isinstance(reply, Ended):
            session.end_as_told(reply)
            logger.warning("%s; entering %r again", session.snapshot.ended, holding.ask.name)
            session = core.enlist(holding)
            sent_ms = runtime.now_ms()
            continue
        if opening is not None:
            session.opened()
        if isinstance(reply, Granted):
            session.granted(holding, reply, sent_ms)
            return reply
        if isinstance(reply, Queued):
            session.queued(holding, reply)
            return reply
        session.forget(holding)
        if isinstance(reply, Busy):
            return reply
        if isinstance(reply, Refused):
            raise _refusal(holding, reply)
        raise StoreError(core.store.label, f"answered {reply!r} to enter")


async def _end_the_dead(core: Core, holding: Holding, ahead: tuple[Blocker, ...]) -> bool:
    """Whether some of those in the way turned out to be dead: it is worth another try.

    For who does not wait: of those who do, the keeper watches whom they wait for.
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
        # The lock is in use; whether its holder lives cannot be told now.
        logger.warning("cannot end dead sessions ahead of %r: %s", holding.ask.name, error)
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
    """Wait in line; False if the claim must enter again, since its session is over."""
    runtime = core.runtime
    session = holding.session
    assert session is not None
    if timeout_ms is None:
        _refuse_own_deadlock(core, holding)
    signal = holding.changed = runtime.signal()
    try:
        while True:
            if holding.phase is HELD:
                return True
            if holding.phase is not WAITING:
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
    """Whoever waits for ever for what it holds itself is told at once."""
    if not holding.actor:
        return  # kept for whoever comes next: what is in its way is given up when asked for
    held = [other for session in core.sessions() for other in session.held_by(holding.actor)]
    own = own_conflict(held, holding)
    if own is not None:
        raise DeadlockError(
            holding.ask.name,
            (f"{holding.actor} holds {own.ask.name!r} (token {own.token}) itself",),
            "release it first, use reentrant=True, or give a timeout",
        )


def _enter_again(session: Session, holding: Holding) -> bool:
    """Always False, unless there is no point in standing in line again."""
    if holding.reason == WHY_DEADLOCK:
        raise DeadlockError(holding.ask.name, tuple(holding.by.split("\n")))
    if not session.snapshot.ended and holding.by:
        raise LeaseLostError(
            holding.ask.name, None, holding.reason, session=session.id, by=holding.by
        )
    logger.warning("%r lost its place: %s; entering again", holding.ask.name, holding.reason)
    return False


async def _give_up(
    core: Core, session: Session, holding: Holding, timeout_ms: int
) -> AcquireTimeoutError | None:
    """Leave the queue, and say who holds the lock and how many are ahead.

    None if the claim was granted in the last moment. This takes two requests and at most
    GIVE_UP_MS. Where the store does not answer, the keeper sends the leave, and the error says
    what was known before.
    """
    holders, ahead = who_is_ahead(holding)
    left = False
    until_ms = core.runtime.now_ms() + GIVE_UP_MS
    try:
        if session.snapshot.confirmed:
            if len(holding.ask.places) == 1:
                kind, name = holding.ask.places[0][:2]
                view = await core.wire.send(Inspect(kind, name, QUEUE_READ_MAX), GIVE_UP_MS)
                if isinstance(view, ResourceView):
                    holders, ahead = _who_is_ahead_in(view, holding)
            if holding.phase is HELD:
                return None
            left_ms = max(1, until_ms - core.runtime.now_ms())
            await core.wire.send(Leave(session.id, holding.n, holding.ask.places), left_ms)
            session.forget(holding)
            left = True
    except StoreError:
        pass  # the error below says that the place is still being given back
    if not left:
        session.abandon(holding)
    return AcquireTimeoutError(
        holding.ask.name, timeout_ms / 1000, holders=holders, ahead=ahead, leaving=not left
    )


def who_is_ahead(holding: Holding) -> tuple[tuple[str, ...], int | None]:
    """The holders directly ahead of a claim, for people; and how many wait ahead, if known."""
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
    return holders, places.index(own) if own in places else None


def _describe(owner: str, token: int, for_ms: int, holding: Holding) -> str:
    """One holder, for people; a permit has no token."""
    if holding.mode == PERMIT:
        return f"{owner} (for {for_ms / 1000:.1f} s)"
    return f"{owner} (token {token}, for {for_ms / 1000:.1f} s)"


def _refusal(holding: Holding, reply: Refused) -> LockfastError:
    name = holding.ask.name
    if reply.why == WHY_LIMIT_DIFFERS:
        return LimitError(
            f"the limit of semaphore {reply.detail!r}",
            reply.value,
            reply.limit,
            "use the limit it has, or resize() it",
            text=f"semaphore {reply.detail!r} is in use with limit={reply.limit}, "
            f"not {reply.value}",
        )
    if reply.why in (WHY_QUEUE_FULL, WHY_CLAIMS_FULL, WHY_TOO_LARGE):
        what = f"the queue of {reply.detail!r}" if reply.why == WHY_QUEUE_FULL else reply.detail
        return LimitError(what, reply.value, reply.limit)
    return StoreError("lockfast", f"claim on {name!r} refused: {reply.why}: {reply.detail}")


async def release(core: Core, holding: Holding, close_ms: int = 0) -> None:
    """Give the lease back. Doing so twice is harmless.

    Raises LeaseLostError if it was lost before, OutcomeUnknownError if the store did
    not answer: the keeper goes on trying then, and the lease ends by itself at last.
    """
    session = holding.session
    assert session is not None
    if session.state_of(holding) is LOST:
        check_process(holding)
        session.work_has_stopped(holding)
        raise lost_error(holding)
    if holding.phase is RELEASED:
        return
    holding.leaving = True
    try:
        reply: Reply = await core.wire.send(
            Leave(session.id, holding.n, holding.ask.places, close_ms),
            # Unanswered, it keeps others waiting while the keeper renews the lease: hand it
            # over to the keeper as soon as that would try again by itself.
            min(RELEASE_MS, session.ttl_ms // RENEWALS_PER_TTL),
        )
        if isinstance(reply, Done) and reply.found:
            session.forget(holding)
            return
        if isinstance(reply, Ended):
            session.end_as_told(reply)
        elif isinstance(reply, Gone):
            session.over(holding, reply.reason, reply.by)
        else:
            session.over(holding, "the store has no record of it")
    except StoreError as error:
        session.abandon(holding, close_ms)
        left_s = max(0, session.deadline_of(holding) - session.runtime.now_ms()) / 1000
        raise OutcomeUnknownError(
            core.store.label,
            f"release of {holding.ask.name!r} (token {holding.token}) may not have arrived",
            f"it is tried again, and the lease ends by itself within {left_s:.1f} s",
        ) from error
    except BaseException:
        session.abandon(holding, close_ms)
        raise
    raise lost_error(holding)


def check(holding: Holding) -> None:
    """Raise LeaseLostError unless the lease is held at this instant, by our own clock."""
    session = holding.session
    assert session is not None
    check_process(holding)
    if session.state_of(holding) in (LOST, LeaseState.RELEASED):
        raise lost_error(holding)


def check_process(holding: Holding) -> None:
    session = holding.session
    assert session is not None
    if session.process != session.runtime.process():
        raise LeaseLostError(holding.ask.name, holding.token, FORKED, session=session.id)


def lost_error(holding: Holding) -> LeaseLostError:
    """What to raise for a lease that is over."""
    session = holding.session
    assert session is not None
    if holding.phase is RELEASED:
        return LeaseLostError(holding.ask.name, holding.token, "it was released")
    ago_ms = None
    if holding.ended_ms is not None:
        ago_ms = session.runtime.now_ms() - holding.ended_ms
    reason = holding.reason + (f" (by {holding.by})" if holding.by else "")
    return LeaseLostError(
        holding.ask.name,
        holding.token,
        reason,
        session=session.id,
        by=holding.by,
        ago_ms=ago_ms,
    )
