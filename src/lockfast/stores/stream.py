"""A connected socket for callers that block: bytes out, bytes in, nothing after its time.

A server on this machine or near it answers before a thread that was put to sleep would be
awake again: of a short request, that is the longest part. So whoever waits for an answer looks
for it a moment before going to sleep, as long as the answer before came that soon.
"""

from __future__ import annotations

import os
import select
import socket
import ssl
from time import monotonic
from typing import Final

from lockfast.errors import OutcomeUnknownError, StoreUnavailableError

RECEIVE_BYTES: Final = 65536
NEAR_S: Final = 0.0003
"""An answer that takes longer is slept for, and so is the one after it."""
IDLE_S: Final = 0.05
"""A stream unused for this long is looked at before it is trusted."""


def _go_on() -> None:
    """Where a system has no way to let others run first."""


give_way: Final = getattr(os, "sched_yield", _go_on)
"""Lets whoever else waits for this processor have it: that may be the very server."""


class Stream:
    """One socket, for one thread at a time. Whatever fails raises OSError."""

    __slots__ = ("_input", "_is_near", "_used_s", "socket")

    def __init__(self, opened: socket.socket) -> None:
        opened.settimeout(0)
        self.socket = opened
        self._is_near = False
        self._used_s = monotonic()
        self._input = select.poll()
        self._input.register(opened, select.POLLIN)

    def send(self, data: bytes, until_s: float) -> None:
        """Until this returns the last byte is not out, and nobody can have acted on it."""
        sent = 0
        while sent < len(data):
            left_s(until_s)
            try:
                sent += self.socket.send(memoryview(data)[sent:] if sent else data)
            except (BlockingIOError, ssl.SSLWantWriteError):
                self._wait_for_room(until_s)
            except ssl.SSLWantReadError:
                self._input.poll(left_s(until_s) * 1000)

    def receive(self, until_s: float) -> bytes:
        """What has come in, as soon as there is something; nothing once the other side is gone."""
        began_s = monotonic()
        data = self.look(began_s + NEAR_S if self._is_near else 0.0)
        while data is None:
            self._input.poll(left_s(until_s) * 1000)
            data = self.at_hand()
        self._used_s = monotonic()
        self._is_near = self._used_s - began_s < NEAR_S
        return data

    def look(self, until_s: float) -> bytes | None:
        """What is at hand, or comes in until then: it is looked for, and not slept for."""
        while (data := self.at_hand()) is None and monotonic() < until_s:
            give_way()
        return data

    def at_hand(self) -> bytes | None:
        """What has come in by now: None if nothing has, and nothing once the other side is gone."""
        try:
            return self.socket.recv(RECEIVE_BYTES)
        except (BlockingIOError, ssl.SSLWantReadError):
            return None

    def is_usable(self) -> bool:
        """Whether it may be trusted: it was in use just now, or is quiet."""
        return monotonic() - self._used_s < IDLE_S or self.is_quiet()

    def is_quiet(self) -> bool:
        """Whether nothing has come in that nobody asked for, such as the server's good-bye."""
        try:
            return not self._input.poll(0) or self.at_hand() is None
        except OSError:
            return False

    def fileno(self) -> int:
        """To be polled, together with others."""
        return self.socket.fileno()

    def _wait_for_room(self, until_s: float) -> None:
        output = select.poll()
        output.register(self.socket, select.POLLOUT)
        output.poll(left_s(until_s) * 1000)

    def close(self) -> None:
        self.socket.close()


def left_s(until_s: float) -> float:
    """The time that is left; raises TimeoutError if there is none."""
    left = until_s - monotonic()
    if left <= 0:
        raise TimeoutError("no time left")
    return left


def not_sent(label: str, error: BaseException | None = None) -> StoreUnavailableError:
    """A request that is surely not carried out, since its last byte is not out."""
    if isinstance(error, TimeoutError):
        return StoreUnavailableError(label, "there was no time left to send the request")
    return StoreUnavailableError(label, "the connection broke before the request was sent")


def in_doubt(label: str, error: BaseException | None = None) -> OutcomeUnknownError:
    """A whole request was sent and no whole answer came."""
    if isinstance(error, TimeoutError):
        return OutcomeUnknownError(label, "did not answer in time")
    return OutcomeUnknownError(label, "the connection broke before the answer came")
