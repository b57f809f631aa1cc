"""What one browser gets: server-sent events, filtered by the rights of its user.

    hello     the user, and what the page may show
    part      a portion of the snapshot; the first has `first`, the last `last`
    delta     what has changed
    ping      no change; every two seconds
    reconnect the server is shutting down

The id of a message is `EPOCH-VERSION`. A browser that reconnects sends the last one it got and
receives the deltas it missed, or a snapshot if they are no longer kept.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable, Iterable
from typing import Any, Final

from lockfast.flow.admin import WatchEvent
from lockfast.server.dashboard.history import Figures
from lockfast.server.dashboard.picture import Delta, Session
from lockfast.server.dashboard.reader import Reader
from lockfast.server.problems import Problem
from lockfast.server.rights import READ, REVOKE
from lockfast.server.service import Caller, principal_in
from lockfast.server.streams import CHECK_S, first_of

PING_S: Final = 2.0
PART: Final = 1000
"""Locks, or sessions, per part of a snapshot."""
TAIL: Final = 200
"""Past events in a snapshot."""

Recheck = Callable[[], Caller]


class View:
    """The picture as one caller may see it."""

    def __init__(self, reader: Reader, caller: Caller) -> None:
        self._reader = reader
        self.caller = caller
        self._figures: Figures | None = None
        self._told: set[str] = set()
        """The sessions that this browser knows."""

    @property
    def _sees_everything(self) -> bool:
        return self.caller.rights.everything

    def sees(self, name: str) -> bool:
        return self.caller.rights.allow(READ, name)

    # ── snapshot ─────────────────────────────────────────────────────────────────────

    def snapshot(self) -> list[dict[str, Any]]:
        """Return the whole picture in parts."""
        picture, history = self._reader.picture, self._reader.history
        locks = [self._lock(lock.row()) for key, lock in picture.locks.items() if self.sees(key[1])]
        sessions = self._sessions(picture.sessions.items())
        figures = history.figures
        if not self._sees_everything:
            figures = self._figures = history.figures_for(self.sees)
        events = [event for event in history.events if self.sees(event.name)][-TAIL:]
        begins = history.begins
        parts: list[dict[str, Any]] = [
            {"locks": locks[at : at + PART]} for at in range(0, len(locks), PART)
        ]
        parts += [{"sessions": sessions[at : at + PART]} for at in range(0, len(sessions), PART)]
        parts.append(
            {
                "leases": self._leases(locks),
                "figures": figures.rows(),
                "historyBegins": begins,
                "events": [_event(event) for event in events],
                "trouble": picture.trouble,
            }
        )
        parts[0]["first"] = parts[-1]["last"] = True
        return parts

    # ── deltas ───────────────────────────────────────────────────────────────────────

    def encoded(self, delta: Delta) -> bytes | None:
        """Return a delta as bytes; None if nothing of it may be shown."""
        if not self._sees_everything:
            shown = self._filtered(delta)
            return self.message("delta", shown, delta.version) if shown else None
        if delta.encoded is None:
            delta.encoded = self.message("delta", self._whole(delta), delta.version)
        return delta.encoded

    def _whole(self, delta: Delta) -> dict[str, Any]:
        rows = [row for row in delta.locks.values() if row is not None]
        return {
            "locks": rows,
            "free": [key for key, row in delta.locks.items() if row is None],
            "sessions": self._sessions(delta.sessions.items()),
            "ended": [name for name, session in delta.sessions.items() if session is None],
            "leases": self._leases(rows, delta.sessions),
            "events": [_event(event) for event in delta.events],
            "leftOut": delta.events_left_out,
            "figures": delta.figures,
            "trouble": delta.trouble,
        }

    def _filtered(self, delta: Delta) -> dict[str, Any]:
        sees = self.sees
        rows = [
            self._lock(row)
            for (_, name), row in delta.locks.items()
            if row is not None and sees(name)
        ]
        events = [event for event in delta.events if sees(event.name)]
        figures = self._figures
        assert figures is not None
        for event in events:
            figures.add(event)
        found = {
            "locks": rows,
            "free": [key for key, row in delta.locks.items() if row is None and sees(key[1])],
            "sessions": self._sessions(delta.sessions.items()),
            "ended": [
                name
                for name, session in delta.sessions.items()
                if session is None and name in self._told
            ],
            "leases": self._leases(rows, delta.sessions),
            "events": [_event(event) for event in events],
            "figures": figures.rows(time.time() - 20) if events else [],
            "trouble": delta.trouble,
        }
        return found if any(found.values()) else {}

    # ── parts ────────────────────────────────────────────────────────────────────────

    def _lock(self, row: dict[str, Any]) -> dict[str, Any]:
        if not self._sees_everything and self.caller.rights.allow(REVOKE, row["name"]):
            return {**row, "revocable": True}
        return row

    def _sessions(self, sessions: Iterable[tuple[str, Session | None]]) -> list[list[Any]]:
        shown = [one for _, one in sessions if one is not None and self._is_own(one)]
        self._told.update(one.session for one in shown)
        return [list(one) for one in shown]

    def _is_own(self, session: Session) -> bool:
        return self._sees_everything or principal_in(session.owner) == self.caller.principal

    def _leases(
        self, rows: Iterable[dict[str, Any]], changed: Iterable[str] = ()
    ) -> dict[str, list[int]]:
        """Return the end and the TTL of these locks' sessions, by session."""
        sessions = self._reader.picture.sessions
        wanted = {claim[0] for row in rows for claim in (*row["holders"], *row["waiting"])}
        self._told |= wanted
        wanted.update(name for name in changed if self._sees_everything or name in self._told)
        return {
            name: [sessions[name].until_ms, sessions[name].ttl_ms]
            for name in wanted
            if name in sessions
        }

    def message(self, what: str, data: dict[str, Any], version: int | None = None) -> bytes:
        """Return one server-sent event; its JSON contains no raw line breaks."""
        data["now"] = time.time_ns() // 1_000_000
        head = f"event: {what}\n"
        if version is not None:
            head += f"id: {self._reader.picture.epoch}-{version}\n"
        text = json.dumps(data, ensure_ascii=False, separators=(",", ":"))
        return f"{head}data: {text}\n\n".encode("utf-8", "replace")


async def stream(
    reader: Reader,
    hello: Callable[[Caller], dict[str, Any]],
    last_id: str,
    recheck: Recheck,
    draining: asyncio.Event,
) -> AsyncIterator[bytes]:
    """Yield messages until the browser disconnects, loses its rights or the server drains."""
    caller = recheck()
    loop = asyncio.get_running_loop()
    with reader.viewing() as changed, caller.usage.stream():
        view = View(reader, caller)
        yield view.message("hello", hello(caller))
        await _first_of_ready(reader, draining)
        version = _resumed(reader, last_id) if caller.rights.everything else None
        epoch = ""
        check_at = loop.time() + CHECK_S
        while not draining.is_set():
            picture = reader.picture
            missed = picture.since(version) if version is not None else None
            if missed is None or (epoch and epoch != picture.epoch):
                missed, version = [], picture.version
                for part in view.snapshot():
                    yield view.message("part", part, version)
            epoch = picture.epoch
            shown = [view.encoded(delta) for delta in missed]
            if missed:
                version = missed[-1].version
            if any(shown):
                yield b"".join(filter(None, shown))
            changed.clear()
            if picture.version == version and not await first_of(changed, draining, PING_S):
                yield view.message("ping", {}, version)
            if loop.time() >= check_at:
                check_at = loop.time() + CHECK_S
                try:
                    caller = recheck()
                except Problem:
                    return
                if caller.rights != view.caller.rights:
                    view, version = View(reader, caller), None
                    yield view.message("hello", hello(caller))
        yield view.message("reconnect", {})


async def _first_of_ready(reader: Reader, draining: asyncio.Event) -> None:
    ready = asyncio.ensure_future(reader.ready())
    stop = asyncio.ensure_future(draining.wait())
    await asyncio.wait({ready, stop}, return_when=asyncio.FIRST_COMPLETED)
    ready.cancel()
    stop.cancel()


def _resumed(reader: Reader, last_id: str) -> int | None:
    """Return the version that a browser has; None if it needs a snapshot."""
    epoch, _, version = last_id.partition("-")
    is_known = epoch == reader.picture.epoch and version.isascii() and version.isdigit()
    return int(version) if is_known and len(version) < 17 else None


def _event(event: WatchEvent) -> list[Any]:
    return list(event)
