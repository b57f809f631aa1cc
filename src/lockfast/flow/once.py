"""Jobs that run at most once per window across all clients."""

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
    """After a run starts, no client starts another for this long."""
    at_most_ms: int
    """A run that takes longer is presumed stuck and loses its claim."""
    retry_crashed: bool
    ttl_ms: int

    def ask(self, kind: str, name: str) -> Ask:
        return Ask(
            (Place(kind, name, EXCLUSIVE),),
            self.ttl_ms,
            max_hold_ms=self.at_most_ms,
            # Close the window at the grant, so that it stays closed even if the run crashes.
            # With retry_crashed, `finish` closes it after a successful run instead.
            window_ms=0 if self.retry_crashed else self.at_least_ms,
        )


async def finish(core: Core, holding: Holding, window: Window, went_well: bool) -> None:
    """Release the claim after a run, and keep its window closed."""
    close_ms = 0
    if window.retry_crashed and went_well:
        session = holding.session
        assert session is not None
        ran_ms = core.runtime.now_ms() - holding.granted_at_ms
        close_ms = max(0, window.at_least_ms - ran_ms)
    try:
        await release(core, holding, close_ms)
    except LockfastError as error:
        # The job has run; losing the claim during the run does not undo it.
        logger.warning("%s", error)
