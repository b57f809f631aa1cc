"""Watch the events of locks by reading the store's bounded log.

A store that lost its data starts a new log, whose positions begin again. A watcher recognises this
by an end before its own position. The new log may have grown past that position before the watcher
reads it, so whenever its session had to be replaced, it also reads its last event again and
compares. Either way it raises WatchGapError, as for events that the log no longer has.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Final

from lockfast.core.commands import Ended, Event, Events, EventsReply, Refused, Watch
from lockfast.core.names import INTERNAL
from lockfast.errors import WatchGapError
from lockfast.flow.acquire import refusal
from lockfast.flow.admin import WatchEvent, list_locks, watch_event
from lockfast.flow.client import Core
from lockfast.flow.session import RENEWALS_PER_TTL, Session
from lockfast.ports import Signal

ENDINGS: Final = ("released", "expired", "revoked")
"""The events that end a held claim."""


class Watcher:
    """Reads the log from a position on, and waits for a wake at its end."""

    def __init__(
        self,
        core: Core,
        kind: str | None,
        prefix: str,
        after: int | None,
        *,
        exact: bool = False,
    ) -> None:
        """`exact`: the prefix is the whole name of the resource to watch."""
        self._core = core
        self._kind = kind
        self._prefix = prefix
        self._position = after
        self._ready: deque[Event] = deque()
        self._last: Event | None = None
        """The last event read."""
        self._is_resumed = False
        """A session was replaced: the store may have another log now."""
        self._sessions: dict[int, Session] = {}
        """The session that the store wakes, in each shard that may have such events."""
        self._shards = _shards(core, kind, prefix, exact)
        self._signal: Signal | None = None
        self.closed = False

    @property
    def position(self) -> int | None:
        """The position of the last event read; pass it to `watch(after=…)` to continue."""
        return self._position

    async def start(self) -> None:
        """Fix the starting position; no later event is missed."""
        if self._position is None:
            reply = await self._core.ask(Events(None), EventsReply)
            self._position = reply.end

    async def next(self) -> WatchEvent | None:
        """Wait for the next event. Return None once the watcher is closed."""
        core = self._core
        await self.start()
        while not self.closed:
            while self._ready:
                event = self._last = self._ready.popleft()
                self._position = event.position
                if self._concerns(event):
                    return watch_event(event)
            sessions = [await self._listen(shard) for shard in self._shards]
            signal = self._signal = core.runtime.signal()
            # Register before reading the log, so that an event written afterwards wakes us.
            for session in sessions:
                session.events_changed.append(signal.set)
                session.on_end.append(signal.set)
            try:
                events = await self._read()
                self._ready.extend(events)
                listening = all(session.alive() for session in sessions)
                if not events and listening and not self.closed:
                    await signal.wait(sessions[0].ttl_ms // RENEWALS_PER_TTL)
            finally:
                for session in sessions:
                    session.events_changed.remove(signal.set)
                    session.on_end.remove(signal.set)
        return None

    async def _read(self) -> tuple[Event, ...]:
        """Return the events after our position, and advance it past events we may not see."""
        known = self._last if self._is_resumed else None
        assert self._position is not None
        after = self._position if known is None else known.position - 1
        reply = await self._core.ask(Events(after), EventsReply)
        is_cut = after < reply.oldest - 1 and after < reply.end
        if is_cut or reply.end < after or not _begins_with(reply, known):
            raise await self._gap(self._position, reply)
        self._is_resumed = False
        events = _whole_steps(reply)
        if known is not None:
            return tuple(event for event in events if event.position > self._position)
        if not events and not reply.more:
            # A server hides events that we may not read: do not read them again.
            self._position = reply.end
        return events

    def hands_over(self, event: WatchEvent, what: str) -> bool:
        """Return True if the step that wrote `event` also wrote `what` for the same resource.

        The events of one step are adjacent in the log and have the same timestamp.
        """
        return any(
            other.what == what and (other.kind, other.name) == (event.kind, event.name)
            for other in self._ready
            if other.wall_ms / 1000 == event.at
        )

    def _concerns(self, event: Event) -> bool:
        return (
            (self._kind is None or event.kind == self._kind)
            and event.name.startswith(self._prefix)
            and INTERNAL not in event.name
        )

    async def _listen(self, shard: int) -> Session:
        """Return a session that the store wakes when the log of this shard grows."""
        while True:
            session = self._core.session(shard=shard)
            if session is self._sessions.get(shard) and session.alive():
                return session
            opening = session.opening()
            if opening is not None:
                opened = await self._core.request(opening)
                if isinstance(opened, Ended):
                    session.ended_by_store(opened)
                    continue
                if isinstance(opened, Refused):
                    session.opening_refused()
                    raise refusal("session", opened)
                session.opened()
            reply = await self._core.request(Watch(session.id, True))
            if isinstance(reply, Ended):
                session.ended_by_store(reply)
                continue
            if shard in self._sessions and self._core.placement is None:
                self._is_resumed = True
            self._sessions[shard] = session
            return session

    async def _gap(self, position: int, reply: EventsReply) -> WatchGapError:
        snapshot = [
            info
            for kind in ([self._kind] if self._kind else KINDS)
            for info in await list_locks(self._core, kind, self._prefix)
        ]
        self._position, self._last, self._is_resumed = reply.end, None, False
        return WatchGapError(position, reply.oldest, reply.end, tuple(snapshot))

    def close(self) -> None:
        """Make `next` return None. May be called from any thread or task."""
        self.closed = True
        signal = self._signal
        if signal is not None:
            signal.set()


def _shards(core: Core, kind: str | None, prefix: str, exact: bool) -> Sequence[int]:
    if core.placement is None:
        return (0,)
    if exact and kind is not None:
        return (core.placement.shard_of_name(kind, prefix),)
    return core.placement.shards_of_prefix(prefix)


def _begins_with(reply: EventsReply, known: Event | None) -> bool:
    """Return whether a reply begins with this event; its time may be the time of reading."""
    if known is None:
        return True
    same = (known._replace(wall_ms=0, detail=""),)
    return tuple(event._replace(wall_ms=0, detail="") for event in reply.events[:1]) == same


def _whole_steps(reply: EventsReply) -> tuple[Event, ...]:
    """Return the events read, without a last step that was read only in part."""
    events = reply.events
    if reply.more:
        whole = [event for event in events if event.wall_ms != events[-1].wall_ms]
        return tuple(whole) or events
    return events


KINDS = ("lock", "tree", "semaphore", "election", "party", "once")
