"""A server that accepts clients and answers commands with whatever the test specifies."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Self

from lockfast.stores.redis.resp import PENDING, ReplyReader

Answer = Callable[[], Iterator[bytes]]
"""Yields parts of a reply for as long as the client reads them."""


class HostileServer:
    """Completes the handshake; `answer` decides the replies to scripts."""

    def __init__(self, answer: Answer) -> None:
        self._answer = answer
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._threads: list[threading.Thread] = []
        self._open: list[socket.socket] = []

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}"

    def __enter__(self) -> Self:
        self._start(self._serve)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for connection in self._open:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(30)

    def _start(self, job: Callable[..., None], *arguments: socket.socket) -> None:
        self._threads.append(threading.Thread(target=job, args=arguments, daemon=True))
        self._threads[-1].start()

    def _serve(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                self._open.append(connection)
                self._start(self._talk, connection)

    def _talk(self, connection: socket.socket) -> None:
        reader = ReplyReader()  # a command is an array of strings, as a reply may be
        reader.bytes_max = 1 << 30
        with connection, contextlib.suppress(OSError):
            while data := connection.recv(1 << 20):
                reader.feed(data)
                while (command := reader.gets()) is not PENDING:
                    if command[0] == "EVALSHA":
                        for piece in self._answer():
                            connection.sendall(piece)
                    else:
                        connection.sendall(b"+OK\r\n")
