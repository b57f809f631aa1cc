"""How requests reach the nodes: one flight to all of them at once.

`Flights` is the port between the protocol (wire.py) and the world. The blocking runtime polls
one socket per node, asyncio awaits them, the simulator carries messages.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import IntEnum
from typing import Final, Protocol, TypeAlias

from lockfast.stores.quorum.messages import Answer, NoAnswer, Request

FLIGHT_MS_MAX: Final = 1000
"""A flight without a majority ends after this, whatever its caller's patience: the next one
also asks nodes that could not be reached when this one left."""
STRAGGLERS_MS_MIN: Final = 5
STRAGGLERS_MS_MAX: Final = 200


class Progress(IntEnum):
    """What the answers so far allow."""

    WAIT = 0
    SOON = 1
    """Wait a little for the rest: as long again as this took, within bounds."""
    DONE = 2


Answers: TypeAlias = Sequence[Answer | NoAnswer | None]
"""By node; None: not answered yet."""
Judge: TypeAlias = Callable[[Answers], Progress]
Late: TypeAlias = Callable[[int, Answer], None]


def stragglers_ms(took_ms: int) -> int:
    """How long to wait for the others after a majority answered within `took_ms`."""
    return max(STRAGGLERS_MS_MIN, min(2 * took_ms, STRAGGLERS_MS_MAX))


class Patience:
    """How long one flight waits."""

    def __init__(self, began_ms: int, timeout_ms: int) -> None:
        self._began_ms = began_ms
        self._until_ms = began_ms + min(timeout_ms, FLIGHT_MS_MAX)
        self._soon_ms: int | None = None

    def left_ms(self, progress: Progress, now_ms: int) -> int:
        """How long to wait for the next answer; 0: no longer."""
        if progress is Progress.DONE:
            return 0
        if progress is Progress.SOON and self._soon_ms is None:
            self._soon_ms = now_ms + stragglers_ms(now_ms - self._began_ms)
        until_ms = self._until_ms
        if self._soon_ms is not None:
            until_ms = min(until_ms, self._soon_ms)
        return max(0, until_ms - now_ms)


class Flights(Protocol):
    """A client's way to all nodes, for one kind of caller."""

    async def ask(
        self, requests: Sequence[Request | None], judge: Judge, timeout_ms: int, late: Late
    ) -> Answers:
        """Send each node its request in parallel and return as soon as `judge` is satisfied.

        A request that was not sent by then is dropped. One that was sent and is answered
        later goes to `late`, on whichever thread reads the answer.
        """
        ...

    def post(self, requests: Sequence[Request | None]) -> None:
        """Send without waiting; whether a request arrives is not known."""
        ...

    def close(self) -> None: ...
