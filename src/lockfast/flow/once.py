"""Jobs that run at most once per window across all clients."""

from __future__ import annotations

from enum import StrEnum
from typing import Final, NamedTuple

from lockfast.core.commands import Place
from lockfast.core.modes import EXCLUSIVE, ONCE
from lockfast.core.names import INTERNAL
from lockfast.errors import LockfastError, UnsupportedError, WatchGapError
from lockfast.flow.acquire import acquire, release
from lockfast.flow.admin import LockInfo, inspect
from lockfast.flow.client import Core
from lockfast.flow.holding import Ask, Holding
from lockfast.flow.log import logger
from lockfast.flow.watch import ENDINGS, Watcher
from lockfast.ports import Capabilities

MARK_MS: Final = 60_000
"""How long those who waited for a run can read that it succeeded."""
ALMOST_OVER_S: Final = 1.0
"""The mark of a success may end this long before its window: wait for the window then."""


class Outcome(StrEnum):
    """What became of a call of a job that runs once."""

    RAN = "ran"
    SKIPPED = "skipped"
    """Another run blocks the window; its result is not known."""
    DONE = "done"
    """Skipped, because another client has finished it (`wait=True`)."""
    FAILED = "failed"
    """Skipped, because it failed or crashed at another client (`wait=True`)."""


class Window(NamedTuple):
    """How often a job may run."""

    at_least_ms: int
    """After a run starts, no client starts another for this long."""
    at_most_ms: int
    """A run that takes longer is presumed stuck and loses its claim."""
    retry_crashed: bool
    ttl_ms: int
    wait: bool = False
    """Wait for a run under way, and record successes for those who wait."""

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
    # Both times are in whole milliseconds, so up to one fewer has passed between them.
    passed_ms = core.runtime.now_ms() - holding.granted_at_ms - 1
    left_ms = max(0, window.at_least_ms - passed_ms)
    close_ms = left_ms if window.retry_crashed and went_well else 0
    # The job has run: neither a failed mark nor the loss of the claim undoes that.
    if window.wait and went_well:
        try:
            # Before the release, so that those who wait for it find the mark.
            await _mark(core, window, _mark_of(holding.ask.name, holding.token), MARK_MS)
            if left_ms:
                await _mark(core, window, _mark_of(holding.ask.name), left_ms)
        except LockfastError as error:
            logger.warning("%s", error)
    try:
        await release(core, holding, close_ms)
    except LockfastError as error:
        logger.warning("%s", error)


async def wait_for_end(core: Core, name: str, window: Window) -> Outcome | None:
    """Wait for the run under way. Return None if the caller should try to run it."""
    while True:
        watcher = Watcher(core, ONCE, name, None, exact=True)
        try:
            # From here on no event is missed.
            await watcher.start()
            found = await inspect(core, ONCE, name)
            if not found.holders:
                return await _outcome_of_the_last(core, found)
            token = found.holders[0].token
            await _end_of(watcher, name, token)
        except WatchGapError:
            continue  # the end of the run may be among the missed events: look again
        finally:
            watcher.close()
        if await _is_marked(core, _mark_of(name, token)):
            return Outcome.DONE
        return None if window.retry_crashed else Outcome.FAILED


def require_waiting(capabilities: Capabilities) -> None:
    """Raise UnsupportedError if others cannot wait for the end of a run on this store."""
    if not capabilities.watch:
        raise UnsupportedError(
            "once(wait=True)",
            "this store keeps no log of events, which shows others that a run has ended",
            "drop wait=True or use another store",
        )


async def _end_of(watcher: Watcher, name: str, token: int | None) -> None:
    while (event := await watcher.next()) is not None:
        # The run may have begun after the watcher: then its grant is among the events.
        if event.name == name and event.token == token and event.what in ENDINGS:
            return


async def _outcome_of_the_last(core: Core, found: LockInfo) -> Outcome | None:
    if found.closed_for <= 0:
        return None
    if await _is_marked(core, _mark_of(found.name)):
        return Outcome.DONE
    if found.closed_for <= ALMOST_OVER_S:
        await core.runtime.signal().wait(int(found.closed_for * 1000) + 1)
        return None
    return Outcome.FAILED


def _mark_of(name: str, token: int | None = None) -> str:
    """Return the resource that is closed after a success."""
    mark = f"{name}{INTERNAL}done"
    return mark if token is None else f"{mark}/{token}"


async def _mark(core: Core, window: Window, name: str, for_ms: int) -> None:
    """Close a resource for a while: a mark that all clients can read."""
    place = Place(ONCE, name, EXCLUSIVE)
    holding = core.holding(Ask((place,), window.ttl_ms, window_ms=for_ms))
    if await acquire(core, holding, 0):
        await release(core, holding)


async def _is_marked(core: Core, name: str) -> bool:
    return (await inspect(core, ONCE, name)).closed_for > 0
