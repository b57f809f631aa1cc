"""A small proxy that cuts a connection after a given byte of a request or of a reply."""

from __future__ import annotations

import contextlib
import select
import socket
import struct
import threading
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Final, NamedTuple, Self
from urllib.parse import quote

_RESET: Final = struct.pack("ii", 1, 0)
"""As SO_LINGER: closing sends a reset, not a good-bye."""


class Cut(NamedTuple):
    """After so many bytes in one direction, both sides are reset."""

    direction: str
    """`request` or `reply`."""
    after: int


class Proxy:
    """Listens on a TCP port and passes everything on, except what it is told to cut."""

    def __init__(self, upstream: Path) -> None:
        self._upstream = upstream
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._cut: Cut | None = None
        self._passed = {"request": 0, "reply": 0}
        self._mutex = threading.Lock()
        self._threads: list[threading.Thread] = []
        self._open: set[socket.socket] = set()

    def url(self, namespace: str) -> str:
        return f"redis://127.0.0.1:{self.port}?namespace={quote(namespace)}"

    def __enter__(self) -> Self:
        self._start(self._serve)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        # Wakes `accept`; closing alone would not.
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for relayed in list(self._open):
            with contextlib.suppress(OSError):
                relayed.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()

    def arm(self, cut: Cut | None) -> None:
        """Count from here on, and cut once; None: only count."""
        with self._mutex:
            self._cut = cut
            self._passed = {"request": 0, "reply": 0}

    def passed(self, direction: str) -> int:
        with self._mutex:
            return self._passed[direction]

    def _serve(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            server.connect(str(self._upstream))
            self._open |= {client, server}
            self._start(self._relay, client, server)

    def _start(self, job: Callable[..., None], *arguments: socket.socket) -> None:
        self._threads = [thread for thread in self._threads if thread.is_alive()]
        self._threads.append(threading.Thread(target=job, args=arguments, daemon=True))
        self._threads[-1].start()

    def _relay(self, client: socket.socket, server: socket.socket) -> None:
        ways = {client: ("request", server), server: ("reply", client)}
        with client, server, contextlib.ExitStack() as at_end:
            at_end.callback(self._open.difference_update, (client, server))
            while True:
                for source in select.select([client, server], [], [])[0]:
                    direction, target = ways[source]
                    try:
                        data = source.recv(65536)
                        allowed, cut = self._allow(direction, len(data))
                        target.sendall(data[:allowed])
                    except OSError:
                        return
                    if cut:
                        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
                    if cut or not data:
                        return

    def _allow(self, direction: str, count: int) -> tuple[int, bool]:
        with self._mutex:
            cut = self._cut
            if cut is None or cut.direction != direction:
                self._passed[direction] += count
                return count, False
            left = cut.after - self._passed[direction]
            if left > count:
                self._passed[direction] += count
                return count, False
            self._cut = None
            return left, True
