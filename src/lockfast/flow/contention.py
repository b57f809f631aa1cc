"""Waiting at a store without a queue: propose, back off, propose again.

Each attempt is a claim of its own. Between two attempts the caller waits for the span that the
store suggests, or until the store says that what it waits for was given back. Such a wake is a
hint: only the next attempt tells.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lockfast.core.commands import Busy, Contend, Enter, Open
from lockfast.flow.holding import Holding

if TYPE_CHECKING:
    from lockfast.flow.client import Core


def contends(core: Core, timeout_ms: int | None) -> bool:
    """Whether an acquire with this timeout waits by contending."""
    can = core.store.capabilities
    return timeout_ms != 0 and can.contend and not can.queue


def entering(
    core: Core, holding: Holding, timeout_ms: int | None, opening: Open | None
) -> Enter | Contend:
    """The command that asks for the claim, the store's way."""
    if not contends(core, timeout_ms):
        return holding.enter(timeout_ms != 0, opening)
    session = holding.session
    assert session is not None
    now_ms = core.runtime.now_ms()
    holding.since_ms = holding.since_ms or now_ms
    # Before it is sent: the wake may come before the answer.
    holding.changed = core.runtime.signal()
    session.contenders[holding.n] = holding
    return Contend(holding.enter(False, opening), now_ms - holding.since_ms)


async def back_off(holding: Holding, busy: Busy, left_ms: int | None) -> None:
    """Wait until it is time for the next attempt."""
    signal = holding.changed
    assert signal is not None
    retry_ms = max(1, busy.retry_ms)
    try:
        await signal.wait(retry_ms if left_ms is None else min(retry_ms, left_ms))
    finally:
        holding.changed = None
