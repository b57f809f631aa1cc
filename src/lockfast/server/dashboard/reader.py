"""Keeps the picture of one namespace up to date, for all browsers together.

Two tasks run while browsers are connected. One follows the event log, which shows a grant within
milliseconds. The other reads from the store what the log does not contain, in portions: locks whose
view is uncertain, one page of the listing per second as a check, and the sessions, whose renewals
are not logged. Both stop LINGER_S after the last browser has disconnected.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import Final

from lockfast.core import commands as c
from lockfast.core.modes import MODES_OF_KIND
from lockfast.core.names import INTERNAL
from lockfast.errors import LockfastError, UnsupportedError
from lockfast.flow.admin import watch_event
from lockfast.flow.capabilities import require_supported
from lockfast.server.dashboard.history import HISTORY_S, SLOT_S, History
from lockfast.server.dashboard.picture import CLAIMS_SHOWN, Key, Picture
from lockfast.server.event_log import EventLog, Gap
from lockfast.server.service import Service

logger = logging.getLogger(__name__)

TICK_S: Final = 0.1
"""The shortest time between two deltas; the first after a pause is immediate."""
SWEEP_S: Final = 1.0
SESSIONS_S: Final = 2.0
RETRY_S: Final = 1.0
LINGER_S: Final = 20.0
"""How long to keep reading after the last browser has disconnected, in case it reloads."""
PAGE: Final = 500
SESSION_PAGE: Final = 1000
VIEWS_MAX: Final = 25
"""How many uncertain locks are read per tick."""
EVENTS_PAGE: Final = 500
BACKFILL_MAX: Final = 20_000
"""How many past events are read from the log at the start."""


class Reader:
    """The picture of one namespace, kept up to date while it has viewers."""

    def __init__(self, service: Service, log: EventLog) -> None:
        self._service = service
        self._log = log
        self.picture = Picture(secrets.token_hex(4))
        self.history = History()
        self._viewers: set[asyncio.Event] = set()
        self._task: asyncio.Task[None] | None = None
        self._ready = asyncio.Event()
        self._position: int | None = None
        self._flushed_s = 0.0
        self._flush_due: asyncio.TimerHandle | None = None
        self._figures_s = 0.0
        self._sessions_at_s = 0.0
        self._idle_at_s = 0.0
        self._sweep_at_s = 0.0
        self._sweeping = self._sweep()
        self._next_page: str | None = None
        self._has_gap = False
        """Events were missed: they left the log before they were read."""
        self._views: dict[Key, tuple[float, asyncio.Future[c.ResourceView]]] = {}

    @contextlib.contextmanager
    def viewing(self) -> Iterator[asyncio.Event]:
        """Keep the picture up to date; the event is set with each new delta."""
        changed = asyncio.Event()
        self._viewers.add(changed)
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run())
        try:
            yield changed
        finally:
            self._viewers.discard(changed)
            self._idle_at_s = time.monotonic()

    async def ready(self) -> None:
        """Wait until the picture is complete, or there is an error to show."""
        await self._ready.wait()

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task

    # ── the run ──────────────────────────────────────────────────────────────────────

    @property
    def _is_wanted(self) -> bool:
        return bool(self._viewers) or time.monotonic() - self._idle_at_s < LINGER_S

    async def _run(self) -> None:
        self._views.clear()
        self._sweeping = self._sweep()
        following: asyncio.Task[None] | None = None
        try:
            # Fix the position in the log first: later events are applied to what is read next.
            await self._retried(self._backfill)
            await self._retried(self._read_everything)
            following = asyncio.create_task(self._follow())
            self._ready.set()
            while self._is_wanted:
                await self._retried(self._keep_up)
        finally:
            self._ready.clear()
            self.picture = Picture(secrets.token_hex(4))  # its content is stale from now on
            if self._flush_due is not None:
                self._flush_due.cancel()
                self._flush_due = None
            if following is not None:
                following.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await following
        if self._viewers:  # one arrived while this run was ending
            self._task = asyncio.create_task(self._run())

    async def _retried(self, step: Callable[[], Awaitable[None]]) -> None:
        """Run a step until it succeeds; until then show the error on the page."""
        while True:
            try:
                await step()
            except UnsupportedError as error:
                self._say(str(error))
                await asyncio.sleep(RETRY_S)
                return
            except Exception as error:
                # Catch everything: a reader that ended would leave pages stale without a message.
                is_known = isinstance(error, LockfastError | TimeoutError)
                self._say(getattr(error, "what", "") or type(error).__name__)
                logger.warning(
                    "the dashboard cannot read the store: %s", error, exc_info=not is_known
                )
                self._ready.set()
                await asyncio.sleep(RETRY_S)
                if not self._is_wanted:
                    return
            else:
                self._say("")
                return

    def _say(self, trouble: str) -> None:
        self.picture.trouble = trouble
        self._changed()

    # ── events ───────────────────────────────────────────────────────────────────────

    async def _follow(self) -> None:
        while True:
            try:
                if self._position is None:
                    await self._backfill()
                    self._has_gap = True
                async for events in self._log.follow(self._position):
                    now_ms = _wall_ms()
                    for event in events:
                        self.picture.apply(event, now_ms)
                        self.history.add(event)
                        if event.session not in self.picture.sessions:
                            self._sessions_at_s = min(
                                self._sessions_at_s, time.monotonic() + 2 * TICK_S
                            )
                    self._position = events[-1].position
                    self._changed()
                    # Batch the events that arrive within half a tick.
                    await asyncio.sleep(TICK_S / 2)
            except Gap:
                self._position = None
                self.history.clear()
            except UnsupportedError:
                return  # no log: only the sweep finds changes
            except Exception as error:
                is_known = isinstance(error, LockfastError | TimeoutError)
                logger.warning(
                    "the dashboard cannot follow the event log: %s", error, exc_info=not is_known
                )
                await asyncio.sleep(RETRY_S)

    async def _backfill(self) -> None:
        """Read the log's past into the history, or what it has missed since the last run."""
        end = await self._send(c.Events(None))
        if not isinstance(end, c.EventsReply):
            return
        begin = max(end.oldest - 1, end.end - BACKFILL_MAX)
        if self._position is None or not begin <= self._position <= end.end:
            self.history.clear()
            self._position = max(0, begin)
        while True:
            reply = await self._send(c.Events(self._position, EVENTS_PAGE))
            if not isinstance(reply, c.EventsReply) or not reply.events:
                break
            for event in reply.events:
                is_recent = event.wall_ms > _wall_ms() - HISTORY_S * 1000
                if is_recent and INTERNAL not in event.name:
                    self.history.add(watch_event(event))
            self._position = reply.events[-1].position
            if not reply.more:
                break

    # ── views ────────────────────────────────────────────────────────────────────────

    async def _read_everything(self) -> None:
        for kind in MODES_OF_KIND:
            after: str | None = ""
            while after is not None:
                after = await self._read_page(kind, after)
        await self._read_sessions()

    async def _keep_up(self) -> None:
        """Wait one tick, then read what is due of the data that the log does not contain."""
        await asyncio.sleep(TICK_S)
        if self._has_gap:
            self._has_gap = False
            await self._read_everything()
        now_s = time.monotonic()
        uncertain = list(self.picture.uncertain)[:VIEWS_MAX]
        if uncertain:
            await asyncio.gather(*(self._read_view(key) for key in uncertain))
        if now_s >= self._sessions_at_s:
            await self._read_sessions()
        if now_s >= self._sweep_at_s:
            kind, after = next(self._sweeping)
            self._next_page = await self._read_page(kind, after)
            self._sweep_at_s = time.monotonic() + SWEEP_S
        if self.picture.has_changed:
            self._changed()

    def _sweep(self) -> Iterator[tuple[str, str]]:
        """Yield the pages of all kinds forever; `_next_page` is where the last one ended."""
        while True:
            for kind in MODES_OF_KIND:
                after: str | None = ""
                while after is not None:
                    yield kind, after
                    after = self._next_page

    async def _read_page(self, kind: str, after: str) -> str | None:
        """Read a page of the listing; return where the next one starts, None after the last."""
        asked = self.picture.events_seen
        reply = await self._send(c.Listing(kind, "", after, PAGE))
        if not isinstance(reply, c.ListingReply):
            return None
        now_ms = _wall_ms()
        found = {view.name for view in reply.resources}
        for view in reply.resources:
            if INTERNAL not in view.name:
                self.picture.put_view(view, now_ms, asked)
        last = reply.resources[-1].name if reply.more and reply.resources else None
        missing = [
            key
            for key in self.picture.locks
            if key[0] == kind
            and key[1] > after
            and (last is None or key[1] <= last)
            and key[1] not in found
        ]
        self.picture.recheck(missing, asked)
        return last

    async def _read_view(self, key: Key) -> None:
        asked = self.picture.events_seen
        self.picture.uncertain.pop(key, None)
        reply = await self._send(c.Inspect(*key, CLAIMS_SHOWN))
        if isinstance(reply, c.ResourceView):
            self.picture.put_view(reply, _wall_ms(), asked)

    async def _read_sessions(self) -> None:
        started_s = time.monotonic()
        views: dict[str, c.SessionView] = {}
        after, more = "", True
        while more:
            reply = await self._send(c.Sessions(after, SESSION_PAGE))
            if not isinstance(reply, c.SessionsReply) or not reply.sessions:
                break
            views.update((view.session, view) for view in reply.sessions)
            after, more = reply.sessions[-1].session, reply.more
        self.picture.put_sessions(views, _wall_ms())
        # Many sessions take longer to read; spend at most a tenth of the time on them.
        took_s = time.monotonic() - started_s
        self._sessions_at_s = time.monotonic() + max(SESSIONS_S, 10 * took_s)

    async def view(self, kind: str, name: str, waiting_max: int, fresh_s: float) -> c.ResourceView:
        """Return one lock in full; browsers that ask within `fresh_s` share one request."""
        now_s = time.monotonic()
        known = self._views.get((kind, name))
        if known is None or now_s - known[0] > fresh_s:
            future = asyncio.ensure_future(self._inspect(kind, name, waiting_max))
            known = self._views[kind, name] = (now_s, future)
            for key in [key for key, (at, _) in self._views.items() if now_s - at > 10]:
                del self._views[key]
        return await asyncio.shield(known[1])

    async def _inspect(self, kind: str, name: str, waiting_max: int) -> c.ResourceView:
        reply = await self._send(c.Inspect(kind, name, waiting_max))
        assert isinstance(reply, c.ResourceView)
        return reply

    async def _send(self, command: c.Command) -> c.Reply:
        require_supported(self._service.store.capabilities, command)
        return await self._service.send(command)

    # ── deltas ───────────────────────────────────────────────────────────────────────

    def _changed(self) -> None:
        """Create a delta now, or as soon as the last one is a tick old."""
        if self._flush_due is not None or not self._ready.is_set():
            return
        wait_s = self._flushed_s + TICK_S - time.monotonic()
        if wait_s <= 0:
            self._flush()
        else:
            self._flush_due = asyncio.get_running_loop().call_later(wait_s, self._flush)

    def _flush(self) -> None:
        self._flush_due = None
        now_s = time.monotonic()
        self._flushed_s = now_s
        if not self.picture.has_changed:
            return
        figures = []
        if now_s - self._figures_s > 1:
            self._figures_s = now_s
            figures = self.history.figures.rows(time.time() - 2 * SLOT_S)
        self.picture.flush(figures)
        for changed in self._viewers:
            changed.set()


def _wall_ms() -> int:
    return time.time_ns() // 1_000_000
