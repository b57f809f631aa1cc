"""How a session is woken: LISTEN on a connection of its own, for its keeper's thread.

A notification is believed only if it carries the secret of the session's inbox: any role of the
database may send notifications, but only those that can read our tables know the secret.
"""

from __future__ import annotations

import hmac
import logging
import os
import secrets
import threading
from collections.abc import Sequence
from time import monotonic
from typing import Final

from lockfast.core.commands import (
    WAKE_ENDED,
    WAKE_EVENTS,
    WAKE_GRANTED,
    WAKE_LOOK,
    WAKE_WANTED,
    Blocker,
    Wake,
)
from lockfast.errors import StoreError
from lockfast.ports import Deliver
from lockfast.runtimes import platform
from lockfast.stores.postgresql.connection import Connection
from lockfast.stores.postgresql.wire import ALL_SESSIONS, Server
from lockfast.stores.waker import Waker

logger = logging.getLogger(__name__)

CONNECT_S: Final = 1.0
RETRY_FIRST_S: Final = 0.05
RETRY_MAX_S: Final = 2.0
_BELIEVED: Final = frozenset({WAKE_GRANTED, WAKE_WANTED})
"""Sent by the very step that did it, to this session alone: no need to ask the server again."""
_KNOWN: Final = frozenset({*_BELIEVED, WAKE_LOOK, WAKE_ENDED, WAKE_EVENTS})


class PostgresWakeListener:
    """One session's ear. Only its keeper listens, on one thread."""

    process = ""
    """Deaths of processes cannot be seen from another machine."""

    def __init__(self, server: Server, session: str, deliver: Deliver) -> None:
        self._secret = secrets.token_hex(8)
        self.inbox = f"{server.channel} {self._secret}"
        self._server = server
        self._session = session
        self._deliver = deliver
        self._process = os.getpid()
        self._connection: Connection | None = None
        self._is_off = server.address.listen == "off"
        self._has_looked = False
        self._retry_at_s = 0.0
        self._retry_s = RETRY_FIRST_S
        self._mutex = threading.Lock()
        self._waiting: set[int] = set()
        self._waker = Waker()
        self._waker_fd = self._waker.fileno()
        self._poll = platform.poll()
        self._poll.register(self._waker_fd, platform.POLLIN)
        server.attach(session, deliver)

    async def listen(self, timeout_ms: int | None) -> Sequence[Wake]:
        until_s = None if timeout_ms is None else monotonic() + timeout_ms / 1000
        if self._connection is None and self._start(until_s):
            self._has_looked = False
        # What was sent before, nobody heard: look for ourselves. Not before the session is
        # open: until then its keeper has nothing to do, and waits without a bound.
        if self._connection is not None and not self._has_looked and timeout_ms is not None:
            self._has_looked = True
            return self._looks()
        while True:
            heard, interrupted = self._wait(until_s)
            wakes = self._read() if heard else []
            is_due = until_s is not None and monotonic() >= until_s
            if wakes or interrupted or is_due or not heard or self._connection is None:
                return wakes

    # ── listening ────────────────────────────────────────────────────────────────────

    def _start(self, until_s: float | None) -> bool:
        now_s = monotonic()
        if self._is_off or now_s < self._retry_at_s:
            return False
        give_up_s = now_s + CONNECT_S if until_s is None else min(until_s, now_s + CONNECT_S)
        try:
            connection = Connection(self._server.address.for_listening(), give_up_s)
            try:
                if connection.is_pooled:
                    self._is_off = True
                    logger.warning(
                        "%s: a connection pooler stands in between, which cannot deliver "
                        "notifications; waiters are woken by keep-alives. Name the server itself "
                        "with ?listen=host:port, or silence this with ?listen=off",
                        self._server.address.label,
                    )
                    connection.close()
                    return False
                connection.run(f'LISTEN "{self._server.channel}"', until_s=give_up_s)
            except BaseException:
                connection.close()
                raise
        except StoreError:
            # The keeper's own requests report what is wrong, and try again in time.
            self._retry_at_s = monotonic() + self._retry_s
            self._retry_s = min(2 * self._retry_s, RETRY_MAX_S)
            return False
        self._retry_s = RETRY_FIRST_S
        self._connection = connection
        self._poll.register(connection.fileno(), platform.POLLIN)
        return True

    def _looks(self) -> list[Wake]:
        """At the session itself, which may be over, and at each claim that waits."""
        with self._mutex:
            numbers = [0, *sorted(self._waiting)]
        return [Wake(self.inbox, self._session, n, WAKE_LOOK) for n in numbers]

    def _lost(self) -> None:
        if self._connection is not None:
            self._poll.unregister(self._connection.fileno())
            self._connection.close()
            self._connection = None
            self._retry_at_s = monotonic() + self._retry_s

    # ── hearing ──────────────────────────────────────────────────────────────────────

    def _wait(self, until_s: float | None) -> tuple[bool, bool]:
        """Whether there is something to read, and whether we were interrupted."""
        now_s = monotonic()
        wait_s = None if until_s is None else until_s - now_s
        if self._connection is None and not self._is_off:
            retry_s = self._retry_at_s - now_s
            wait_s = retry_s if wait_s is None else min(wait_s, retry_s)
        heard = interrupted = False
        for fd, _ in self._poll.poll(None if wait_s is None else max(0, wait_s * 1000)):
            if fd == self._waker_fd:
                self._waker.take()
                interrupted = True
            else:
                heard = True
        return heard, interrupted

    def _read(self) -> list[Wake]:
        wakes: list[Wake] = []
        if self._connection is None:
            return wakes
        try:
            for payload in self._connection.notifications():
                self._take(payload, wakes)
        except OSError:
            self._lost()
        return wakes

    def _take(self, payload: str, wakes: list[Wake]) -> None:
        try:
            secret, session, n, what, token = payload.split(" ")
            wake = Wake(self.inbox, session, int(n), what, int(token))
        except ValueError:
            return  # not ours: any role may notify
        is_ours = self._session in (session, ALL_SESSIONS)
        if not is_ours or not hmac.compare_digest(secret, self._secret):
            return
        if what in _BELIEVED:
            self._deliver(wake)
        elif what in _KNOWN:
            wakes.append(wake)

    def interrupt(self) -> None:
        self._waker.interrupt()

    def watch_over(self, n: int, blockers: Sequence[Blocker]) -> None:
        """Nobody can be watched from here, but this tells us what is waited for."""
        with self._mutex:
            if blockers:
                self._waiting.add(n)
            else:
                self._waiting.discard(n)

    def dead(self, blockers: Sequence[Blocker]) -> Sequence[str]:
        return ()

    def close(self) -> None:
        self._server.detach(self._session)
        if self._process == os.getpid():
            self._lost()
            self._waker.close()
