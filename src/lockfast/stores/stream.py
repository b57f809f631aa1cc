"""A connected socket for the blocking API: every send and receive ends by its deadline.

On a local network a reply often arrives before a blocked thread can be rescheduled: that wake-up is
the longest part of a short request. `Stream.receive` therefore polls the socket for up to SPIN_S,
yielding the CPU between polls, before it blocks. It stops polling after a reply that took longer,
and never polls if the stream was created with `spins=False`.

A stream knows nothing about protocols. Its reader bounds what it collects (FRAME_BYTES_MAX unless
the request asks for more) and validates what it has read.
"""

from __future__ import annotations

import socket
import ssl
from time import monotonic
from typing import Final

from lockfast.errors import OutcomeUnknownError, StoreUnavailableError
from lockfast.runtimes.platform import POLLIN, POLLOUT, poll, yield_cpu

FRAME_BYTES_MAX: Final = 1 << 20
"""The largest reply that is read, unless the request says otherwise."""
RECEIVE_BYTES: Final = 65536
SPIN_S: Final = 0.0003
"""Poll at most this long; after a slower reply, block instead."""
IDLE_S: Final = 0.05
"""A stream unused for longer is checked for a close by the server before it is used again."""


class Stream:
    """One socket, used by one thread at a time. Failures raise OSError."""

    __slots__ = ("_answers_fast", "_input", "_spins", "_used_s", "socket")

    def __init__(self, opened: socket.socket, *, spins: bool = True) -> None:
        opened.settimeout(0)
        self.socket = opened
        self._spins = spins
        self._answers_fast = False
        self._used_s = monotonic()
        self._input = poll()
        self._input.register(opened, POLLIN)

    def send(self, data: bytes, until_s: float) -> None:
        """Send all of `data`. If this raises, the last byte was not sent.

        Raises TimeoutError at `until_s`.
        """
        rest: bytes | memoryview = data
        while True:
            left_s(until_s)
            try:
                sent = self.socket.send(rest)
            except (BlockingIOError, ssl.SSLWantWriteError):
                self._wait_for_room(until_s)
            except ssl.SSLWantReadError:
                self._input.poll(left_s(until_s) * 1000)
            else:
                if sent == len(rest):
                    return
                rest = memoryview(rest)[sent:]

    def receive(self, until_s: float) -> bytes:
        """Wait for data and return what has arrived; b"" if the peer closed the connection.

        Raises TimeoutError at `until_s`, also if data is available: a peer that sends
        a byte now and then must not keep its reader past the deadline.
        """
        began_s = monotonic()
        if began_s >= until_s:
            raise TimeoutError("no time left")
        spin_until_s = began_s + SPIN_S if self._answers_fast else 0.0
        while (data := self.receive_nowait()) is None:
            if monotonic() < spin_until_s:
                yield_cpu()
            else:
                self._input.poll(left_s(until_s) * 1000)
        self._used_s = monotonic()
        self._answers_fast = self._spins and self._used_s - began_s < SPIN_S
        return data

    def receive_nowait(self) -> bytes | None:
        """Return what has arrived; None if nothing has, b"" if the peer closed."""
        try:
            return self.socket.recv(RECEIVE_BYTES)
        except (BlockingIOError, ssl.SSLWantReadError):
            return None

    def is_usable(self) -> bool:
        """Return whether a request may be sent: the stream was just used, or is quiet."""
        return monotonic() - self._used_s < IDLE_S or self.is_quiet()

    def is_quiet(self) -> bool:
        """Return whether no unexpected data has arrived, such as the server's close."""
        try:
            return not self._input.poll(0) or self.receive_nowait() is None
        except OSError:
            return False

    def fileno(self) -> int:
        """Return the descriptor, to poll several streams together."""
        return self.socket.fileno()

    def _wait_for_room(self, until_s: float) -> None:
        output = poll()
        output.register(self.socket, POLLOUT)
        output.poll(left_s(until_s) * 1000)

    def close(self) -> None:
        self.socket.close()


def tune(opened: socket.socket) -> None:
    """Send small requests without delay, and detect a server that vanished without closing."""
    opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    opened.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (("TCP_KEEPIDLE", 10), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 3)):
        if hasattr(socket, name):
            opened.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def left_s(until_s: float) -> float:
    """Return the seconds left until `until_s`; raise TimeoutError if there are none."""
    left = until_s - monotonic()
    if left <= 0:
        raise TimeoutError("no time left")
    return left


def not_sent(label: str, error: BaseException | None = None) -> StoreUnavailableError:
    """Return the error for a request that was not executed: its last byte was not sent."""
    if isinstance(error, TimeoutError):
        return StoreUnavailableError(label, "the request could not be sent in time")
    return StoreUnavailableError(label, "the connection broke before the request was sent")


def in_doubt(label: str, error: BaseException | None = None) -> OutcomeUnknownError:
    """Return the error for a request that was sent and not answered completely."""
    if isinstance(error, TimeoutError):
        return OutcomeUnknownError(label, "did not answer in time")
    return OutcomeUnknownError(label, "the connection broke before the answer came")


def unreadable(label: str, why: object) -> OutcomeUnknownError:
    """Return the error for a reply that violates the protocol, is too large, or is malformed.

    The request may have been executed, and nothing else that arrives on the same connection can be
    trusted: the code that raises this error closes the connection.
    """
    return OutcomeUnknownError(
        label, f"sent an answer that cannot be used ({why})", "check what listens at this address"
    )
