"""Wait for a lock in a store without a queue: propose, back off, propose again.

Each attempt is a separate claim. Between attempts the caller waits for the interval that the
store suggests, or until a wake reports that the lock was released. A wake is only a hint: the
next attempt may fail too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lockfast.core.commands import Busy, Contend, Open
from lockfast.flow.holding import Holding

if TYPE_CHECKING:
    from lockfast.flow.client import Core


def contend(core: Core, holding: Holding, opening: Open | None) -> Contend:
    """Return the command for the next attempt."""
    session = holding.session
    assert session is not None
    now_ms = core.runtime.now_ms()
    holding.since_ms = holding.since_ms or now_ms
    # Create the signal before sending: the wake may arrive before the reply.
    holding.changed = core.runtime.signal()
    session.contenders[holding.n] = holding
    return Contend(holding.enter(False, opening), now_ms - holding.since_ms)


async def back_off(holding: Holding, busy: Busy, left_ms: int | None) -> None:
    """Wait until the next attempt is due or a wake arrives."""
    signal = holding.changed
    assert signal is not None
    retry_ms = max(1, busy.retry_ms)
    try:
        await signal.wait(retry_ms if left_ms is None else min(retry_ms, left_ms))
    finally:
        holding.changed = None
