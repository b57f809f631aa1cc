"""The base of wake listeners for servers: one connection, reconnected with backoff.

A listener belongs to one keeper and runs on its thread. It polls its connection together with a
waker, so that other threads can interrupt it.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from time import monotonic
from typing import Final, Generic, Protocol, TypeVar

from lockfast.core.commands import Blocker
from lockfast.runtimes import platform
from lockfast.stores.waker import Waker

CONNECT_S: Final = 1.0
RETRY_FIRST_S: Final = 0.05
RETRY_MAX_S: Final = 2.0


class Closable(Protocol):
    def close(self) -> None: ...


ConnectionT = TypeVar("ConnectionT", bound=Closable)


class ReconnectingListener(Generic[ConnectionT]):
    """The connection of a wake listener, and how it waits."""

    process = ""
    """Empty: a server cannot detect that a client's process has died."""

    def __init__(self) -> None:
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

    def _connect_until_s(self, until_s: float | None) -> float | None:
        """Return when an attempt to connect must end; None if it is too early for one."""
        now_s = monotonic()
        if self._is_off or now_s < self._retry_at_s:
            return None
        return now_s + CONNECT_S if until_s is None else min(until_s, now_s + CONNECT_S)

    def _connect_failed(self) -> None:
        self._retry_at_s = monotonic() + self._retry_s
        self._retry_s = min(2 * self._retry_s, RETRY_MAX_S)

    def _connected(self, connection: ConnectionT, fd: int) -> None:
        self._retry_s = RETRY_FIRST_S
        self._connection, self._connection_fd = connection, fd
        self._poll.register(fd, platform.POLLIN)

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

    def dead(self, blockers: Sequence[Blocker]) -> Sequence[str]:
        return ()

    def close(self) -> None:
        if self._process == os.getpid():
            self._disconnect()
            self._waker.close()
