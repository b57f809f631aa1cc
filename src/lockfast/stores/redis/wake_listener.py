"""How a session hears: a subscription to its own channel, on a connection of its own."""

from __future__ import annotations

import os
import select
import threading
from collections.abc import Sequence
from time import monotonic
from typing import Any, Final

import hiredis

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
from lockfast.stores.redis.connection import PENDING, Connection, pack
from lockfast.stores.redis.scripts import inbox_of
from lockfast.stores.redis.wire import Shard
from lockfast.stores.stream import RECEIVE_BYTES
from lockfast.stores.waker import Waker

CONNECT_S: Final = 1.0
RETRY_FIRST_S: Final = 0.05
RETRY_MAX_S: Final = 2.0
_BELIEVED: Final = frozenset({WAKE_GRANTED, WAKE_WANTED})
"""Said by the very step that did it, to this session alone: no need to ask the server again."""
_KNOWN: Final = frozenset({*_BELIEVED, WAKE_LOOK, WAKE_ENDED, WAKE_EVENTS})


class RedisWakeListener:
    """One session's subscription. Only its keeper listens, on one thread."""

    process = ""
    """Deaths of processes cannot be seen from another machine."""

    def __init__(self, shard: Shard, session: str, deliver: Deliver) -> None:
        self.inbox = inbox_of(shard.address.namespace, session)
        self._shard = shard
        self._session = session
        self._deliver = deliver
        self._process = os.getpid()
        self._connection: Connection | None = None
        self._has_looked = False
        self._retry_at_s = 0.0
        self._retry_s = RETRY_FIRST_S
        self._mutex = threading.Lock()
        self._waiting: set[int] = set()
        self._waker = Waker()
        self._poke_fd = self._waker.fileno()
        self._poll = select.poll()
        self._poll.register(self._poke_fd, select.POLLIN)
        self._is_tls = shard.address.tls is not None

    async def listen(self, timeout_ms: int | None) -> Sequence[Wake]:
        until_s = None if timeout_ms is None else monotonic() + timeout_ms / 1000
        if self._connection is None and self._subscribe(until_s):
            self._has_looked = False
        # What was published before, nobody heard: look for ourselves. Not before the session
        # is open: until then its keeper has nothing to do, and waits without a bound.
        if self._connection is not None and not self._has_looked and timeout_ms is not None:
            self._has_looked = True
            return self._looks()
        while True:
            heard, interrupted = self._wait(until_s)
            wakes = self._read() if heard else []
            # What was delivered is done with: wait on, for whoever got a lock by it is kept
            # from running by all that a keeper does between one wait and the next.
            is_due = until_s is not None and monotonic() >= until_s
            if wakes or interrupted or is_due or not heard or self._connection is None:
                return wakes

    # ── subscribing ──────────────────────────────────────────────────────────────────

    def _subscribe(self, until_s: float | None) -> bool:
        now_s = monotonic()
        if now_s < self._retry_at_s:
            return False
        give_up_s = now_s + CONNECT_S if until_s is None else min(until_s, now_s + CONNECT_S)
        try:
            connection = Connection(self._shard.address, give_up_s)
            try:
                answer = connection.exchange(pack("SUBSCRIBE", self.inbox), give_up_s)
                self._shard.checked(answer)
            except BaseException:
                connection.close()
                raise
        except StoreError:
            # The keeper's own requests say what is wrong, and try again in time.
            self._retry_at_s = monotonic() + self._retry_s
            self._retry_s = min(2 * self._retry_s, RETRY_MAX_S)
            return False
        self._retry_s = RETRY_FIRST_S
        self._connection = connection
        self._poll.register(connection.stream, select.POLLIN)
        return True

    def _looks(self) -> list[Wake]:
        """At the session itself, which may be over, and at each claim that waits."""
        with self._mutex:
            numbers = [0, *sorted(self._waiting)]
        return [Wake(self.inbox, self._session, n, WAKE_LOOK) for n in numbers]

    def _lost(self) -> None:
        if self._connection is not None:
            self._poll.unregister(self._connection.stream)
            self._connection.close()
            self._connection = None
            self._retry_at_s = monotonic() + self._retry_s

    # ── hearing ──────────────────────────────────────────────────────────────────────

    def _wait(self, until_s: float | None) -> tuple[bool, bool]:
        """Whether there is something to read, and whether we were interrupted."""
        now_s = monotonic()
        wait_s = None if until_s is None else until_s - now_s
        if self._connection is None:
            retry_s = self._retry_at_s - now_s
            wait_s = retry_s if wait_s is None else min(wait_s, retry_s)
        heard = interrupted = False
        for fd, _ in self._poll.poll(None if wait_s is None else max(0, wait_s * 1000)):
            if fd == self._poke_fd:
                self._waker.take()
                interrupted = True
            else:
                heard = True
        return heard, interrupted

    def _read(self) -> list[Wake]:
        connection = self._connection
        wakes: list[Wake] = []
        if connection is None:
            return wakes
        try:
            while (data := connection.stream.receive_nowait()) is not None:
                if not data:
                    self._lost()
                    break
                connection.feed(data)
                while (message := connection.take()) is not PENDING:
                    self._take(message, wakes)
                if len(data) < RECEIVE_BYTES and not self._is_tls:
                    break
                # Until nothing is left: TLS may have more in store than the socket shows.
        except (OSError, hiredis.ProtocolError):
            self._lost()
        return wakes

    def _take(self, message: Any, wakes: list[Wake]) -> None:
        try:
            kind, channel, text = message
            session, n, what, token = text.split(" ")
            wake = Wake(self.inbox, session, int(n), what, int(token))
        except (ValueError, TypeError, AttributeError):
            return  # not ours: anybody with the right may publish
        if kind != "message" or channel != self.inbox or session != self._session:
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
        if self._process == os.getpid():
            self._lost()
            self._waker.close()
