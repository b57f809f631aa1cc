"""Streams of a session's wakes and of the event log, as JSON lines or server-sent events."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from collections import deque
from collections.abc import AsyncIterator, Callable
from typing import Any, Final, Protocol

from lockfast.core.commands import Wake
from lockfast.errors import LockfastError
from lockfast.ports import WAKE_MISSED
from lockfast.server.event_log import EventLog, Gap
from lockfast.server.problems import Problem
from lockfast.server.rights import READ
from lockfast.server.service import Caller
from lockfast.server.wakes import Hearers
from lockfast.stores.lockserver.wake_listener import LINES, PING_S

logger = logging.getLogger(__name__)

SSE: Final = "text/event-stream"
CHECK_S: Final = 30.0
"""How often a stream checks that its principal still has the right to it."""
PENDING_MAX: Final = 10_000
PING: Final = {"what": "ping"}
RECONNECT: Final = {"what": "reconnect"}

Write = Callable[[dict[str, Any]], bytes]
Recheck = Callable[[], Caller]


def as_line(message: dict[str, Any]) -> bytes:
    return json.dumps(message, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"


def as_sse(message: dict[str, Any]) -> bytes:
    """Return a message as a server-sent event; its JSON contains no raw line breaks."""
    if message == PING:
        return b": ping\n\n"
    head = f"event: {message['what']}\n" if "what" in message else ""
    if "position" in message:
        head += f"id: {message['position']}\n"
    return head.encode() + b"data: " + as_line(message) + b"\n"


def format_for(accept: str) -> tuple[str, Write]:
    """Return the media type and the encoder that a client asks for."""
    return (LINES, as_line) if LINES in accept else (SSE, as_sse)


class Waking(Protocol):
    """What has sessions that are woken: the commands of a namespace, or its node."""

    @property
    def wakes(self) -> Hearers: ...
    def bound(self, session: str) -> str | None: ...


class Pending:
    """Wakes that wait to be written to one stream."""

    def __init__(self, is_allowed: Callable[[], bool]) -> None:
        self._wakes: deque[dict[str, Any]] = deque()
        self._is_allowed = is_allowed
        self.arrived = asyncio.Event()

    def hear(self, wake: Wake) -> None:
        if not self._is_allowed():
            return
        if len(self._wakes) >= PENDING_MAX:
            # The client reads too slowly; one `missed` makes it check all its claims.
            self._wakes.clear()
            self._wakes.append({"what": WAKE_MISSED})
        message: dict[str, Any] = {"what": wake.what}
        if wake.n:
            message["n"] = wake.n
        if wake.token:
            message["token"] = wake.token
        self._wakes.append(message)
        self.arrived.set()

    def take(self) -> list[dict[str, Any]]:
        self.arrived.clear()
        taken = list(self._wakes)
        self._wakes.clear()
        return taken


async def wakes(
    service: Waking,
    session: str,
    write: Write,
    recheck: Recheck,
    draining: asyncio.Event,
) -> AsyncIterator[bytes]:
    """Yield the wakes of a session, which may not be open yet."""
    caller = recheck()
    loop = asyncio.get_running_loop()

    def is_allowed() -> bool:
        return not caller.principal or service.bound(session) in (None, caller.principal)

    pending = Pending(is_allowed)
    with service.wakes.hearing(session, pending.hear), caller.usage.stream():
        check_at = loop.time() + CHECK_S
        yield write({"what": WAKE_MISSED})
        while not draining.is_set():
            if loop.time() >= check_at:
                check_at = loop.time() + CHECK_S
                try:
                    recheck()
                except Problem:
                    return
            messages = pending.take()
            if messages:
                yield b"".join(map(write, messages))
            elif not await first_of(pending.arrived, draining, PING_S):
                yield write(PING)
        yield write(RECONNECT)


async def events(
    log: EventLog,
    after: int | None,
    prefix: str,
    write: Write,
    recheck: Recheck,
    draining: asyncio.Event,
) -> AsyncIterator[bytes]:
    """Yield the events that the caller may read, after a position of the log."""
    caller = recheck()
    loop = asyncio.get_running_loop()
    check_at = loop.time() + CHECK_S
    follower = log.follow(after)
    reading: asyncio.Task[Any] | None = None
    with caller.usage.stream():
        try:
            yield b": connected\n\n" if write is as_sse else b"\n"
            while not draining.is_set():
                if reading is None:
                    reading = asyncio.ensure_future(anext(follower))
                stop = asyncio.ensure_future(draining.wait())
                await asyncio.wait(
                    {reading, stop}, timeout=PING_S, return_when=asyncio.FIRST_COMPLETED
                )
                stop.cancel()
                if loop.time() >= check_at:
                    check_at = loop.time() + CHECK_S
                    try:
                        caller = recheck()
                    except Problem:
                        return
                if not reading.done():
                    yield write(PING)
                    continue
                done, reading = reading, None
                try:
                    found = done.result()
                except Gap as gap:
                    yield write({"what": "gap", "resume_at": gap.resume_at})
                    return
                except LockfastError as error:
                    logger.warning("a stream of events ends: %s", error)
                    return
                shown = [
                    write(event._asdict())
                    for event in found
                    if event.name.startswith(prefix) and caller.rights.allow(READ, event.name)
                ]
                if shown:
                    yield b"".join(shown)
            yield write(RECONNECT)
        finally:
            if reading is not None:
                reading.cancel()
                with contextlib.suppress(
                    asyncio.CancelledError, StopAsyncIteration, Gap, LockfastError
                ):
                    await reading
            await follower.aclose()  # type: ignore[attr-defined]  # it is a generator


async def first_of(one: asyncio.Event, other: asyncio.Event, timeout_s: float) -> bool:
    """Wait for either of two events; return False on timeout."""
    waiting = [asyncio.ensure_future(event.wait()) for event in (one, other)]
    try:
        done, _ = await asyncio.wait(
            waiting, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED
        )
        return bool(done)
    finally:
        for task in waiting:
            task.cancel()
