"""A descriptor that any thread can make readable, to interrupt a thread that polls."""

from __future__ import annotations

import contextlib
import socket


class Waker:
    """Poll its descriptor for input, and `take` the input before acting on the interrupt."""

    def __init__(self) -> None:
        # A socket pair and not a pipe: writing to a closed socket object raises, while writing
        # to a closed descriptor may reach another file that reuses its number.
        self._reader, self._writer = socket.socketpair()
        self._reader.setblocking(False)
        self._writer.setblocking(False)

    def fileno(self) -> int:
        return self._reader.fileno()

    def interrupt(self) -> None:
        # A full buffer is already readable; a closed socket has no listener left.
        with contextlib.suppress(OSError):
            self._writer.send(b".")

    def take(self) -> None:
        with contextlib.suppress(BlockingIOError):
            self._reader.recv(4096)

    def close(self) -> None:
        self._reader.close()
        self._writer.close()
