"""The event log as a stream: one reader per namespace, any number of followers.

While there are followers, one watcher reads the store's log and keeps the newest events in memory.
A follower that starts further back reads the store directly until it has caught up.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import AsyncIterator, Callable
from typing import Final

from lockfast.core.commands import Events, EventsReply
from lockfast.core.names import INTERNAL
from lockfast.errors import LockfastError, WatchGapError
from lockfast.flow.admin import WatchEvent, watch_event
from lockfast.flow.client import Core
from lockfast.flow.watch import Watcher
from lockfast.ports import Store
from lockfast.runtimes.aio import AsyncioRuntime
from lockfast.runtimes.threads import ThreadsRuntime

logger = logging.getLogger(__name__)

KEPT: Final = 10_000
PAGE: Final = 500
RETRY_S: Final = 1.0
TTL_MS: Final = 30_000


class Gap(Exception):
    """The log no longer has the events after a position; continue at `resume_at`."""

    def __init__(self, resume_at: int) -> None:
        super().__init__(f"the log begins after position {resume_at}")
        self.resume_at = resume_at


class EventLog:
    """The log of one namespace."""

    def __init__(self, open_store: Callable[[], Store], owner: str) -> None:
        self._open_store = open_store
        self._owner = owner
        self._recent: deque[WatchEvent] = deque(maxlen=KEPT)
        self._end = -1
        """The position up to which `_recent` is complete; -1 before the log was read."""
        self._begin = 0
        """`_recent` has everything after this position."""
        self._gaps = 0
        """How often the reader has missed events; followers continue only within one count."""
        self._followers: set[asyncio.Event] = set()
        self._reading: asyncio.Task[None] | None = None
        self._core: Core | None = None
        self._watcher: Watcher | None = None

    async def follow(self, after: int | None) -> AsyncIterator[tuple[WatchEvent, ...]]:
        """Yield the events after a position as they arrive. Raises Gap."""
        changed = asyncio.Event()
        self._followers.add(changed)
        try:
            if self._reading is None or self._reading.done():
                self._reading = asyncio.create_task(self._read())
            while self._end < 0:
                changed.clear()
                await changed.wait()
            gaps = self._gaps
            position = self._end if after is None else after
            if position > self._end:
                # From a server that has read further, or from a log that the store has lost.
                await self._check_end(position)
            while True:
                changed.clear()
                if self._gaps != gaps:
                    raise Gap(self._end)
                found = await self._after(position)
                if found:
                    position = found[-1].position
                    shown = tuple(event for event in found if INTERNAL not in event.name)
                    if shown:
                        yield shown
                else:
                    await changed.wait()
        finally:
            self._followers.discard(changed)

    async def _after(self, position: int) -> tuple[WatchEvent, ...]:
        if position >= self._begin:
            if position >= self._end:
                return ()
            return tuple(event for event in self._recent if event.position > position)
        assert self._core is not None
        reply = await self._core.ask(Events(position, PAGE), EventsReply)
        if position < reply.oldest - 1 and position < reply.end:
            raise Gap(reply.oldest - 1)
        return tuple(map(watch_event, reply.events))

    async def _check_end(self, position: int) -> None:
        """Raise Gap if the log ends before a position."""
        assert self._core is not None
        reply = await self._core.ask(Events(None), EventsReply)
        if reply.end < position:
            raise Gap(reply.end)

    async def _read(self) -> None:
        """Follow the store's log while there are followers."""
        try:
            while self._followers:
                try:
                    await self._read_on()
                except WatchGapError as gap:
                    self._recent.clear()
                    self._begin = self._end = gap.resume_at
                    self._gaps += 1
                    self._notify()
                except LockfastError as error:
                    logger.warning("the event log cannot be read: %s", error)
                    await asyncio.sleep(RETRY_S)
        finally:
            self._end = -1
            self._recent.clear()
            core, self._core, self._watcher = self._core, None, None
            if core is not None:
                with contextlib.suppress(LockfastError):
                    await core.close()

    async def _read_on(self) -> None:
        if self._core is None or self._watcher is None:
            self._core = Core(
                self._open_store(),
                AsyncioRuntime(),
                ThreadsRuntime(),
                ttl_ms=TTL_MS,
                owner=self._owner,
            )
            self._watcher = Watcher(self._core, None, "", None)
        watcher = self._watcher
        await watcher.start()
        assert watcher.position is not None
        if self._end < 0:
            self._begin = self._end = watcher.position
        self._notify()
        while self._followers:
            event = await watcher.next()
            if event is None:
                return
            if len(self._recent) == KEPT:
                self._begin = self._recent[0].position
            self._recent.append(event)
            self._end = event.position
            self._notify()

    def _notify(self) -> None:
        for changed in self._followers:
            changed.set()

    async def close(self) -> None:
        if self._reading is not None:
            self._reading.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._reading
