"""A flight: one round of requests, sent to all nodes at once.

`Flights` is the port between the protocol (wire.py) and the network. The blocking runtime polls
one socket per node, asyncio awaits them, and the simulator delivers messages.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import IntEnum
from typing import Final, Protocol, TypeAlias

from lockfast.stores.quorum.messages import Answer, NoAnswer, Request

FLIGHT_MS_MAX: Final = 1000
"""A flight without a majority ends after this time even if its caller's timeout is longer: the next
flight also asks nodes that were unreachable when this one was sent."""
STRAGGLERS_MS_MIN: Final = 20
STRAGGLERS_MS_MAX: Final = 200


class Progress(IntEnum):
    """Whether the answers so far are enough."""

    WAIT = 0
    SOON = 1
    """Wait briefly for the rest: see `stragglers_ms`."""
    DONE = 2


Answers: TypeAlias = Sequence[Answer | NoAnswer | None]
"""By node; None if the node has not answered yet."""
Judge: TypeAlias = Callable[[Answers], Progress]
Late: TypeAlias = Callable[[int, Answer], None]


def stragglers_ms(took_ms: int) -> int:
    """Return how long to wait for the others after a majority answered within `took_ms`."""
    return max(STRAGGLERS_MS_MIN, min(2 * took_ms, STRAGGLERS_MS_MAX))


class Patience:
    """Computes how long one flight waits."""

    def __init__(self, began_ms: int, timeout_ms: int) -> None:
        self._began_ms = began_ms
        self._until_ms = began_ms + min(timeout_ms, FLIGHT_MS_MAX)
        self._soon_ms: int | None = None

    def left_ms(self, progress: Progress, now_ms: int) -> int:
        """Return how long to wait for the next answer; 0 to stop waiting."""
        if progress is Progress.DONE:
            return 0
        if progress is Progress.SOON and self._soon_ms is None:
            self._soon_ms = now_ms + stragglers_ms(now_ms - self._began_ms)
        until_ms = self._until_ms
        if self._soon_ms is not None:
            until_ms = min(until_ms, self._soon_ms)
        return max(0, until_ms - now_ms)


class Flights(Protocol):
    """Sends requests to all nodes, for callers or for the keeper."""

    async def ask(
        self, requests: Sequence[Request | None], judge: Judge, timeout_ms: int, late: Late
    ) -> Answers:
        """Send each node its request in parallel and return as soon as `judge` is satisfied.

        A request that was not sent by then is discarded. The answer to one that was sent goes
        to `late` when it arrives, on the thread that reads it.
        """
        ...

    def post(self, requests: Sequence[Request | None]) -> None:
        """Send without waiting for answers; a request may or may not arrive."""
        ...

    def close(self) -> None: ...
