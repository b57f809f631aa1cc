"""A minimal connection pooler in transaction mode.

It treats a client as PgBouncer does in `pool_mode = transaction`: each transaction runs on any of a
few server connections, no state of a connection (settings, prepared statements, LISTEN) survives
for the next transaction, and the process id in the greeting is not that of a server process. It
parses only the framing of the protocol: a transaction ends when the server reports that it is idle
and has answered every Sync and Query of the client.
"""

from __future__ import annotations

import contextlib
import queue
import socket
import struct
import threading
from typing import Final, Self

_SSL_REQUEST: Final = 80877103
_CANCEL: Final = 80877102
_PID: Final = struct.pack("!ii", 2**31 - 7, 4711)
"""The process id and secret in the greeting of every client."""
_ENDS_A_FLIGHT: Final = (b"Q", b"S")


class _Stream:
    """Messages of the PostgreSQL protocol on a socket."""

    def __init__(self, connected: socket.socket) -> None:
        self.socket = connected
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._file = connected.makefile("rb")

    def exactly(self, count: int) -> bytes:
        read = self._file.read(count)
        if len(read) != count:
            raise ConnectionError("closed")
        return read

    def message(self) -> tuple[bytes, bytes]:
        """Return the type of the next message, and the whole message."""
        head = self.exactly(5)
        (size,) = struct.unpack("!i", head[1:])
        return head[:1], head + self.exactly(size - 4)

    def startup(self) -> bytes:
        head = self.exactly(4)
        return head + self.exactly(struct.unpack("!i", head)[0] - 4)

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)
        self._file.close()
        self.socket.close()


def _message(kind: bytes, body: bytes) -> bytes:
    return kind + struct.pack("!i", len(body) + 4) + body


class TransactionPooler:
    """A pooler in front of one server, with a few server connections for all clients."""

    def __init__(self, port: int, server_connections: int = 2) -> None:
        self._server_port = port
        self._free: queue.Queue[_Stream | None] = queue.Queue()
        for _ in range(server_connections):
            self._free.put(None)  # connected when it is needed
        self._open: set[_Stream] = set()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.transactions = 0

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *error: object) -> None:
        # Without the shutdown a blocked accept() would keep the port open.
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for stream in list(self._open):
            stream.close()

    def _accept(self) -> None:
        while True:
            try:
                connected, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(_Stream(connected),), daemon=True).start()

    def _serve(self, client: _Stream) -> None:
        self._open.add(client)
        try:
            startup = client.startup()
            (code,) = struct.unpack("!i", startup[4:8])
            if code == _SSL_REQUEST:
                client.send(b"N")
                startup = client.startup()
            elif code == _CANCEL:
                return
            client.send(self._greeting(startup))
            while self._transaction(client, startup):
                self.transactions += 1
        except (OSError, ValueError):
            pass
        finally:
            self._open.discard(client)
            client.close()

    def _greeting(self, startup: bytes) -> bytes:
        """Return the server's greeting for a new client, with another process id."""
        server, said = self._connect(startup)
        server.close()
        self._open.discard(server)
        return b"".join(_message(b"K", _PID) if kind == b"K" else whole for kind, whole in said)

    def _connect(self, startup: bytes) -> tuple[_Stream, list[tuple[bytes, bytes]]]:
        server = _Stream(socket.create_connection(("127.0.0.1", self._server_port)))
        self._open.add(server)
        server.send(startup)
        said: list[tuple[bytes, bytes]] = []
        while not said or said[-1][0] not in (b"Z", b"E"):
            said.append(server.message())
        return server, said

    def _transaction(self, client: _Stream, startup: bytes) -> bool:
        """Forward one transaction; return False if the client disconnects instead."""
        first = client.message()
        if first[0] == b"X":
            return False
        server = self._free.get()
        try:
            if server is None:
                server, _ = self._connect(startup)
            self._pass_on(client, server, first)
            server.send(_message(b"Q", b"DISCARD ALL\0"))
            while server.message()[0] != b"Z":
                pass
        except (OSError, ValueError):
            if server is not None:
                self._open.discard(server)
                server.close()
            server = None
            raise
        finally:
            self._free.put(server)
        return True

    def _pass_on(self, client: _Stream, server: _Stream, first: tuple[bytes, bytes]) -> None:
        kind, whole = first
        while True:
            server.send(whole)
            while kind not in _ENDS_A_FLIGHT:
                kind, whole = client.message()
                server.send(whole)
            status = b""
            while not status:
                kind, whole = server.message()
                client.send(whole)
                if kind == b"Z":
                    status = whole[5:]
            if status == b"I":
                return
            kind, whole = client.message()
            if kind == b"X":
                raise ConnectionError("left in the middle of a transaction")
