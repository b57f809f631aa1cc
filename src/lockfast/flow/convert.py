"""Convert a held lease to another mode, and change the value of a held claim."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any

from lockfast.core.commands import (
    WHY_DEADLOCK,
    Busy,
    Claims,
    ClaimsReply,
    Convert,
    Ended,
    Gone,
    Granted,
    Proclaim,
    Queued,
    Refused,
    Reply,
)
from lockfast.core.modes import DOWNGRADES
from lockfast.errors import (
    AcquireTimeoutError,
    DeadlockError,
    LimitError,
    StoreError,
    UnsupportedError,
)
from lockfast.flow.acquire import check, lost_error, who_is_ahead
from lockfast.flow.client import Core
from lockfast.flow.holding import Holding


def convert(
    core: Core, holding: Holding, mode: str, timeout_ms: int | None
) -> Coroutine[Any, Any, None]:
    """As `change_mode`, and tell observers."""
    if core.emitter.observer is None:
        return change_mode(core, holding, mode, timeout_ms)
    from lockfast.flow import observed

    return observed.convert(core, holding, mode, timeout_ms)


async def change_mode(core: Core, holding: Holding, mode: str, timeout_ms: int | None) -> None:
    """Convert the lease to `mode`. It keeps its current mode while it waits and on timeout.

    Raises AcquireTimeoutError, or DeadlockError if another holder waits for our release.
    """
    check(holding)
    session = holding.session
    assert session is not None
    runtime = core.runtime
    until_ms = None if timeout_ms is None else runtime.now_ms() + timeout_ms
    signal = runtime.signal()
    # Cancelling must never request a stronger mode: after a downgrade whose reply was lost,
    # other readers may already hold, so a cancelled downgrade is completed instead.
    fallback = mode if (holding.mode, mode) in DOWNGRADES else holding.mode
    step = session.begin_conversion(holding, signal)
    try:
        while True:
            sent_ms = runtime.now_ms()
            reply = await core.request(Convert(session.id, holding.n, step, mode, timeout_ms != 0))
            _apply(core, holding, reply, sent_ms)
            if isinstance(reply, Granted):
                # The lease may have been lost while the reply was in flight; `granted` then
                # ignores the reply. Raise, so that the caller does not act as the writer.
                check(holding)
                if reply.mode == mode:
                    return
                # Only the deadlock detector cancels a waiting conversion.
                raise DeadlockError(holding.ask.name, await _why_cancelled(core, holding))
            if isinstance(reply, Busy):
                holding.ahead = reply.ahead
                raise AcquireTimeoutError(holding.ask.name, 0.0, holders=who_is_ahead(holding)[0])
            assert isinstance(reply, Queued)
            left_ms = None if until_ms is None else until_ms - runtime.now_ms()
            if left_ms is not None and left_ms <= 0:
                raise AcquireTimeoutError(
                    holding.ask.name, (timeout_ms or 0) / 1000, holders=who_is_ahead(holding)[0]
                )
            if await signal.wait(left_ms):
                check(holding)
                if holding.mode == mode:
                    return
                signal = runtime.signal()
                holding.changed = signal
    except BaseException:
        session.cancel_conversion(holding, fallback)
        raise
    finally:
        session.end_conversion(holding)


async def _why_cancelled(core: Core, holding: Holding) -> tuple[str, ...]:
    """Return the deadlock cycle that the detector recorded when it cancelled the conversion."""
    assert holding.session is not None
    reply = await core.request(Claims(holding.session.id))
    for claim in reply.claims if isinstance(reply, ClaimsReply) else ():
        if claim.n == holding.n and claim.reason:
            return tuple(claim.reason.split("\n"))
    return ("another holder waits for this one",)


def _apply(core: Core, holding: Holding, reply: Reply, sent_ms: int) -> None:
    """Apply the store's reply to `holding`. Raise if the conversion cannot continue."""
    session = holding.session
    assert session is not None
    if isinstance(reply, Granted):
        session.granted(holding, reply, sent_ms)
    elif isinstance(reply, Queued):
        session.queued(holding, reply)
    elif isinstance(reply, Ended):
        session.ended_by_store(reply)
        raise lost_error(holding)
    elif isinstance(reply, Gone):
        session.lost(holding, reply.reason, reply.by)
        raise lost_error(holding)
    elif isinstance(reply, Refused) and reply.why == WHY_DEADLOCK:
        raise DeadlockError(
            holding.ask.name,
            (f"{reply.detail} is also upgrading and waits for this lease to be released",),
            "release the lease, or acquire it with .update() instead of .read()",
        )
    elif isinstance(reply, Refused):
        raise UnsupportedError(f"converting {holding.ask.name!r}", reply.detail)
    elif not isinstance(reply, Busy):
        raise StoreError(core.store.label, f"answered {reply!r} to convert")


async def proclaim(core: Core, holding: Holding, value: str) -> None:
    """Change the value of a held claim that others read."""
    check(holding)
    session = holding.session
    assert session is not None
    reply = await core.request(Proclaim(session.id, holding.n, value))
    if isinstance(reply, Ended):
        session.ended_by_store(reply)
        raise lost_error(holding)
    if isinstance(reply, Gone):
        session.lost(holding, reply.reason)
        raise lost_error(holding)
    if isinstance(reply, Refused):
        raise LimitError("the size of the value in bytes", reply.value, reply.limit)
