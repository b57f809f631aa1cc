"""A TLS front end for a server without TLS: the wheel's was built without it."""

from __future__ import annotations

import contextlib
import select
import socket
import ssl
import threading
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self


class TlsFront:
    """Listens on a TCP port with TLS and passes everything on to a Unix socket."""

    def __init__(self, upstream: Path, context: ssl.SSLContext) -> None:
        self.upstream = upstream
        self._context = context
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._threads: list[threading.Thread] = []
        self._open: set[socket.socket] = set()

    def __enter__(self) -> Self:
        self._start(self._serve)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for opened in (self._listener, *self._open):
            # Wakes a thread that is blocked on the socket; closing alone would not.
            with contextlib.suppress(OSError):
                opened.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for thread in self._threads:
            thread.join()

    def _start(self, job: Callable[..., None], *arguments: socket.socket) -> None:
        self._threads.append(threading.Thread(target=job, args=arguments, daemon=True))
        self._threads[-1].start()

    def _serve(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            wrapped = self._context.wrap_socket(
                client, server_side=True, do_handshake_on_connect=False
            )
            self._open.add(wrapped)
            self._start(self._welcome, wrapped)

    def _welcome(self, client: ssl.SSLSocket) -> None:
        with client, contextlib.suppress(OSError):
            try:
                client.do_handshake()
            except ssl.SSLError:
                # Read everything first: closing with unread data would reset the connection and
                # lose the alert.
                socket.socket.shutdown(client, socket.SHUT_WR)
                while socket.socket.recv(client, 65536):
                    pass
                return
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as server:
                server.connect(str(self.upstream))
                _relay(client, server)
        self._open.discard(client)


def _relay(client: ssl.SSLSocket, server: socket.socket) -> None:
    while True:
        ready = [client] if client.pending() else select.select([client, server], [], [])[0]
        for source in ready:
            data = source.recv(65536)
            if not data:
                return
            (server if source is client else client).sendall(data)
