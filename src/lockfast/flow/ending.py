"""End a session in the store, which may take more than one request."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from lockfast.core.commands import Command, Done, Reply
from lockfast.errors import StoreError
from lockfast.ports import Runtime


async def end_session(
    runtime: Runtime,
    send: Callable[[Command, int], Awaitable[Reply]],
    command: Command,
    timeout_ms: int,
) -> Reply:
    """Send a Close, Expel or RevokeSession, and repeat it while the session has claims left.

    Returns the first reply, which has ended the session for good. A store removes a bounded
    number of claims per step, and repeating the command removes the rest. Failing to repeat it
    is not an error, because every later write by any client removes some more.
    """
    until_ms = runtime.now_ms() + timeout_ms
    first = reply = await send(command, timeout_ms)
    try:
        while isinstance(reply, Done) and reply.more:
            left_ms = until_ms - runtime.now_ms()
            if left_ms <= 0:
                break
            reply = await send(command, left_ms)
    except StoreError:
        pass
    return first
