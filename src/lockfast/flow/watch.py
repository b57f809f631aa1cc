"""Following what happens to locks, through the store's bounded log."""

from __future__ import annotations

from collections import deque

from lockfast.core.commands import Ended, Event, Events, EventsReply, Watch
from lockfast.errors import WatchGapError
from lockfast.flow.admin import WatchEvent, list_locks, watch_event
from lockfast.flow.client import Core
from lockfast.flow.session import RENEWALS_PER_TTL, Session
from lockfast.ports import Signal


class Watcher:
    """Reads the log from a position on; waits to be woken when there is nothing new."""

    def __init__(self, core: Core, kind: str | None, prefix: str, after: int | None) -> None:
        self._core = core
        self._kind = kind
        self._prefix = prefix
        self._position = after
        self._ready: deque[Event] = deque()
        self._session: Session | None = None
        self._signal: Signal | None = None
        self.closed = False

    @property
    def position(self) -> int | None:
        """The last position read; `watch(after=…)` goes on from there."""
        return self._position

    async def start(self) -> None:
        """From here on nothing is missed."""
        if self._position is None:
            reply = await self._core.ask(Events(None), EventsReply)
            self._position = reply.end

    async def next(self) -> WatchEvent | None:
        """The next event, or None once the watcher is closed."""
        core = self._core
        await self.start()
        while not self.closed:
            while self._ready:
                event = self._ready.popleft()
                self._position = event.position
                if self._concerns(event):
                    return watch_event(event)
            session = await self._listen()
            signal = self._signal = core.runtime.signal()
            # In the list before the log is read: what is written after that is heard.
            session.events_changed.append(signal.set)
            session.on_end.append(signal.set)
            try:
                assert self._position is not None
                reply = await core.ask(Events(self._position), EventsReply)
                if self._position < reply.oldest - 1 and self._position < reply.end:
                    raise await self._gap(self._position, reply)
                self._ready.extend(_whole_steps(reply))
                if not reply.events and session.alive() and not self.closed:
                    await signal.wait(session.ttl_ms // RENEWALS_PER_TTL)
            finally:
                session.events_changed.remove(signal.set)
                session.on_end.remove(signal.set)
        return None

    def hands_over(self, event: WatchEvent, what: str) -> bool:
        """Whether `what` happened to the same resource in the same step as `event`.

        What one step writes stands together in the log, at one instant of its clock.
        """
        return any(
            other.what == what and (other.kind, other.name) == (event.kind, event.name)
            for other in self._ready
            if other.wall_ms / 1000 == event.at
        )

    def _concerns(self, event: Event) -> bool:
        return (self._kind is None or event.kind == self._kind) and event.name.startswith(
            self._prefix
        )

    async def _listen(self) -> Session:
        """A session that is told when the log grows."""
        while True:
            session = self._core.session()
            if session is self._session and session.alive():
                return session
            opening = session.opening()
            if opening is not None:
                await self._core.request(opening)
                session.opened()
            reply = await self._core.request(Watch(session.id, True))
            if isinstance(reply, Ended):
                session.end_as_told(reply)
                continue
            self._session = session
            return session

    async def _gap(self, position: int, reply: EventsReply) -> WatchGapError:
        snapshot = [
            info
            for kind in ([self._kind] if self._kind else KINDS)
            for info in await list_locks(self._core, kind, self._prefix)
        ]
        self._position = reply.end
        return WatchGapError(position, reply.oldest, reply.end, tuple(snapshot))

    def close(self) -> None:
        """End `next`; from any thread or task."""
        self.closed = True
        signal = self._signal
        if signal is not None:
            signal.set()


def _whole_steps(reply: EventsReply) -> tuple[Event, ...]:
    """What was read, without the beginning of a step that goes on behind it."""
    events = reply.events
    if reply.more:
        whole = [event for event in events if event.wall_ms != events[-1].wall_ms]
        return tuple(whole) or events
    return events


KINDS = ("lock", "tree", "semaphore", "election", "party", "once")
