"""Receive the wakes of one session: a stream of JSON lines on a separate connection."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final
from urllib.parse import quote

from lockfast.core.codec import TOKEN_MAX
from lockfast.core.commands import (
    WAKE_ENDED,
    WAKE_EVENTS,
    WAKE_FREE,
    WAKE_GRANTED,
    WAKE_LOOK,
    WAKE_WANTED,
    Blocker,
    Wake,
)
from lockfast.errors import StoreError
from lockfast.ports import WAKE_MISSED, Deliver
from lockfast.stores.http.messages import Request
from lockfast.stores.lockserver.address import Address
from lockfast.stores.lockserver.routes import ROOT
from lockfast.stores.lockserver.transport import WakeStream
from lockfast.stores.lockserver.wire import headers_of, in_namespace

LINES: Final = "application/x-ndjson"
CONNECT_MS: Final = 1000
RETRY_FIRST_MS: Final = 50
RETRY_MAX_MS: Final = 2000
PING_S: Final = 10
"""How often the server writes to an idle stream."""
SILENCE_MS: Final = 30_000
"""A stream that is silent for longer counts as broken."""
_BELIEVED: Final = (WAKE_WANTED, WAKE_GRANTED, WAKE_FREE)
"""In order of delivery: a holder must know that others wait before it starts."""
_HINTS: Final = frozenset({WAKE_LOOK, WAKE_ENDED, WAKE_EVENTS, WAKE_MISSED})


class ServerWakeListener:
    """One session's stream. Only its keeper listens, on one thread."""

    process = ""
    """Empty: a server cannot detect that a client's process has died."""

    def __init__(
        self,
        address: Address,
        stream: WakeStream,
        now_ms: Callable[[], int],
        session: str,
        deliver: Deliver,
    ) -> None:
        self.inbox = session
        """Ignored by the server, which uses its own inbox."""
        self._stream = stream
        self._now_ms = now_ms
        self._session = session
        self._deliver = deliver
        path = in_namespace(address, f"{ROOT}/sessions/{quote(session, safe='')}/wakes")
        headers = (*headers_of(address), f"Accept: {LINES}")
        self._request = Request(path, b"", headers, "GET")
        self._has_begun = False
        self._heard_ms = 0
        self._retry_at_ms = 0
        self._retry_ms = RETRY_FIRST_MS

    async def listen(self, timeout_ms: int | None) -> Sequence[Wake]:
        until_ms = None if timeout_ms is None else self._now_ms() + timeout_ms
        if not self._stream.is_open() and self._now_ms() >= self._retry_at_ms:
            return await self._connect(until_ms)
        try:
            lines = await self._stream.next(self._wait_ms(until_ms))
        except StoreError:
            self._fail()
            return []
        now_ms = self._now_ms()
        if lines:
            self._heard_ms = now_ms
        elif self._stream.is_open() and now_ms - self._heard_ms >= SILENCE_MS:
            self._fail()
        return self._hear(lines)

    async def _connect(self, until_ms: int | None) -> Sequence[Wake]:
        """Open the stream and wait for its first line, which confirms that the server listens."""
        give_up_ms = self._now_ms() + CONNECT_MS
        if until_ms is not None:
            give_up_ms = min(give_up_ms, until_ms)
        try:
            await self._stream.open(self._request, max(1, give_up_ms - self._now_ms()))
            while True:
                left_ms = give_up_ms - self._now_ms()
                lines = await self._stream.next(max(0, left_ms))
                if lines and "what" in lines[0]:
                    break
                if lines or left_ms <= 0:
                    self._fail()  # a problem document, or nothing
                    return []
        except StoreError:
            self._fail()
            return []
        self._retry_ms = RETRY_FIRST_MS
        self._heard_ms = self._now_ms()
        return self._hear(lines)

    def _wait_ms(self, until_ms: int | None) -> int | None:
        now_ms = self._now_ms()
        if self._stream.is_open():
            next_ms = self._heard_ms + SILENCE_MS
        else:
            next_ms = self._retry_at_ms
        return max(0, (next_ms if until_ms is None else min(until_ms, next_ms)) - now_ms)

    def _fail(self) -> None:
        # Not reported here: the keeper's own requests fail too, and are retried.
        self._stream.drop()
        self._retry_at_ms = self._now_ms() + self._retry_ms
        self._retry_ms = min(2 * self._retry_ms, RETRY_MAX_MS)

    def _hear(self, lines: Sequence[dict[str, Any]]) -> list[Wake]:
        """Deliver the trusted wakes; return the hints."""
        heard = [wake for wake in map(self._wake, lines) if wake is not None]
        for what in _BELIEVED:
            for wake in heard:
                if wake.what == what:
                    self._deliver(wake)
        return [wake for wake in heard if wake.what in _HINTS]

    def _wake(self, line: dict[str, Any]) -> Wake | None:
        what, n, token = line.get("what"), line.get("n", 0), line.get("token", 0)
        if type(what) is not str or type(n) is not int or type(token) is not int:
            return None
        return Wake(self.inbox, self._session, n, what, token) if 0 <= token <= TOKEN_MAX else None

    def interrupt(self) -> None:
        self._stream.interrupt()

    def watch_over(self, n: int, blockers: Sequence[Blocker]) -> None:
        """Do nothing: processes on other machines cannot be watched."""

    def dead(self, blockers: Sequence[Blocker]) -> Sequence[str]:
        return ()

    def close(self) -> None:
        self._stream.close()
