"""How a listener is made to look up: something to poll for, that any thread can set off."""

from __future__ import annotations

import contextlib
import socket


class Waker:
    """Poll its descriptor for input; `take` what was found before looking for the reason."""

    def __init__(self) -> None:
        # A pair of sockets and not a pipe: to write to a closed socket object is an
        # error, to write to a closed descriptor may hit whatever has its number now.
        self._reader, self._writer = socket.socketpair()
        self._reader.setblocking(False)
        self._writer.setblocking(False)

    def fileno(self) -> int:
        return self._reader.fileno()

    def interrupt(self) -> None:
        # A full buffer is as good as a waker; a closed socket has nobody left to waker.
        with contextlib.suppress(OSError):
            self._writer.send(b".")

    def take(self) -> None:
        with contextlib.suppress(BlockingIOError):
            self._reader.recv(4096)

    def close(self) -> None:
        self._reader.close()
        self._writer.close()
