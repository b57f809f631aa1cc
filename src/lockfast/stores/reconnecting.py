"""The base of wake listeners for servers: one connection, reconnected with backoff.

A listener belongs to one keeper and runs on its thread. It polls its connection together with a
waker, so that other threads can interrupt it.

Wakes sent before the connection was subscribed, or while it was broken, are lost. After each
(re)connection the listener therefore reports WAKE_MISSED, and the keeper checks all claims.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Sequence
from time import monotonic
from typing import Final, Generic, Protocol, TypeVar

from lockfast.core.commands import Blocker, Wake
from lockfast.errors import StoreError
from lockfast.ports import WAKE_MISSED
from lockfast.runtimes import platform
from lockfast.stores.waker import Waker

CONNECT_S: Final = 1.0
RETRY_FIRST_S: Final = 0.05
RETRY_MAX_S: Final = 2.0


class Connection(Protocol):
    def fileno(self) -> int: ...
    def close(self) -> None: ...


ConnectionT = TypeVar("ConnectionT", bound=Connection)


class ReconnectingListener(ABC, Generic[ConnectionT]):
    """One session's subscription. Only its keeper listens, on one thread."""

    inbox: str
    process = ""
    """Empty: a server cannot detect that a client's process has died."""

    def __init__(self, session: str) -> None:
        self._session = session
        self._process = os.getpid()
        self._connection: ConnectionT | None = None
        self._connection_fd = -1
        self._is_off = False
        """Never connect."""
        self._retry_at_s = 0.0
        self._retry_s = RETRY_FIRST_S
        self._waker = Waker()
        self._waker_fd = self._waker.fileno()
        self._poll = platform.poll()
        self._poll.register(self._waker_fd, platform.POLLIN)

    # ── what differs between servers ─────────────────────────────────────────────────

    @abstractmethod
    def _connect(self, until_s: float) -> ConnectionT:
        """Open a connection. Raises StoreError."""

    @abstractmethod
    def _subscribe(self, connection: ConnectionT, until_s: float) -> bool:
        """Ask for the wakes of the session. Return False if this server cannot send any.

        Raises StoreError.
        """

    @abstractmethod
    def _read(self, connection: ConnectionT) -> list[Wake]:
        """Return the wakes that have arrived; call `_disconnect` if the connection is broken."""

    # ── listening ────────────────────────────────────────────────────────────────────

    async def listen(self, timeout_ms: int | None) -> Sequence[Wake]:
        until_s = None if timeout_ms is None else monotonic() + timeout_ms / 1000
        if self._connection is None and self._reconnect(until_s):
            return [Wake(self.inbox, self._session, 0, WAKE_MISSED)]
        while True:
            readable, interrupted = self._wait(until_s)
            connection = self._connection
            wakes = self._read(connection) if readable and connection is not None else []
            # After delivering a grant, keep listening: the keeper's work between two calls would
            # only take the CPU from the thread that was granted the lock.
            is_due = until_s is not None and monotonic() >= until_s
            if wakes or interrupted or is_due or not readable or self._connection is None:
                return wakes

    def _reconnect(self, until_s: float | None) -> bool:
        """Connect and subscribe, unless an attempt has just failed; return True on success."""
        now_s = monotonic()
        if self._is_off or now_s < self._retry_at_s:
            return False
        give_up_s = now_s + CONNECT_S if until_s is None else min(until_s, now_s + CONNECT_S)
        try:
            connection = self._connect(give_up_s)
            try:
                is_subscribed = self._subscribe(connection, give_up_s)
            except BaseException:
                connection.close()
                raise
        except StoreError:
            # Not reported here: the keeper's own requests fail too, and are retried.
            self._retry_at_s = monotonic() + self._retry_s
            self._retry_s = min(2 * self._retry_s, RETRY_MAX_S)
            return False
        if not is_subscribed:
            self._is_off = True
            connection.close()
            return False
        self._retry_s = RETRY_FIRST_S
        self._connection, self._connection_fd = connection, connection.fileno()
        self._poll.register(self._connection_fd, platform.POLLIN)
        return True

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._poll.unregister(self._connection_fd)
            self._connection.close()
            self._connection = None
            self._retry_at_s = monotonic() + self._retry_s

    def _wait(self, until_s: float | None) -> tuple[bool, bool]:
        """Return whether there is something to read, and whether `interrupt` was called."""
        now_s = monotonic()
        wait_s = None if until_s is None else until_s - now_s
        if self._connection is None and not self._is_off:
            retry_s = self._retry_at_s - now_s
            wait_s = retry_s if wait_s is None else min(wait_s, retry_s)
        readable = interrupted = False
        for fd, _ in self._poll.poll(None if wait_s is None else max(0, wait_s * 1000)):
            if fd == self._waker_fd:
                self._waker.take()
                interrupted = True
            else:
                readable = True
        return readable, interrupted

    def interrupt(self) -> None:
        self._waker.interrupt()

    def watch_over(self, n: int, blockers: Sequence[Blocker]) -> None:
        """Do nothing: processes on other machines cannot be watched."""

    def dead(self, blockers: Sequence[Blocker]) -> Sequence[str]:
        return ()

    def close(self) -> None:
        if self._process == os.getpid():
            self._disconnect()
            self._waker.close()
