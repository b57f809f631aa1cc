"""Jobs that run at most once per window over a whole fleet."""

from __future__ import annotations

from typing import NamedTuple

from lockfast.core.commands import Place
from lockfast.core.modes import EXCLUSIVE
from lockfast.errors import LockfastError
from lockfast.flow.acquire import release
from lockfast.flow.client import Core
from lockfast.flow.holding import Ask, Holding
from lockfast.flow.log import logger


class Window(NamedTuple):
    """How often a job may run."""

    at_least_ms: int
    """From the start of a run on, nobody else starts one for this long."""
    at_most_ms: int
    """A run that takes longer is taken for stuck, and loses its claim."""
    retry_crashed: bool
    ttl_ms: int

    def ask(self, kind: str, name: str) -> Ask:
        return Ask(
            (Place(kind, name, EXCLUSIVE),),
            self.ttl_ms,
            max_hold_ms=self.at_most_ms,
            # Closed from the grant on, whatever becomes of the run; unless a crashed run
            # is to be tried again: then it is closed when the run has ended well.
            window_ms=0 if self.retry_crashed else self.at_least_ms,
        )


async def finish(core: Core, holding: Holding, window: Window, went_well: bool) -> None:
    """The run is over; its window stays closed."""
    close_ms = 0
    if window.retry_crashed and went_well:
        session = holding.session
        assert session is not None
        ran_ms = core.runtime.now_ms() - holding.granted_at_ms
        close_ms = max(0, window.at_least_ms - ran_ms)
    try:
        await release(core, holding, close_ms)
    except LockfastError as error:
        # The job has run; that its claim was lost meanwhile does not undo it.
        logger.warning("%s", error)
