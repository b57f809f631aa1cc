"""How a listener is made to look up: something to poll for, that any thread can set off."""

from __future__ import annotations

import contextlib
import socket


class Poke:
    """Poll its descriptor for input; `take` what was found before looking for the reason."""

    def __init__(self) -> None:
        # A pair of sockets and not a pipe: to write to a closed socket object is an
        # error, to write to a closed descriptor may hit whatever has its number now.
        self._poked, self._poker = socket.socketpair()
        self._poked.setblocking(False)
        self._poker.setblocking(False)

    def fileno(self) -> int:
        return self._poked.fileno()

    def poke(self) -> None:
        # A full buffer is as good as a poke; a closed socket has nobody left to poke.
        with contextlib.suppress(OSError):
            self._poker.send(b".")

    def take(self) -> None:
        with contextlib.suppress(BlockingIOError):
            self._poked.recv(4096)

    def close(self) -> None:
        self._poked.close()
        self._poker.close()
