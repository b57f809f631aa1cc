"""Query one member of an ensemble in ways that kazoo cannot.

The queries are the four-letter word `srvr` (the only one that ZooKeeper allows by default) and a
session handshake, whose reply contains the session timeout that the server grants.
"""

from __future__ import annotations

import socket
import struct
from types import TracebackType
from typing import Final, NamedTuple, Self

from lockfast.stores.http.members import Member
from lockfast.stores.zookeeper.address import Address

REPLY_MAX: Final = 1 << 16
NOT_SERVING: Final = "not serving"
READ_ONLY: Final = "read-only"
_REQUEST: Final = struct.Struct("!iqiqi16s?")
"""Protocol version, last zxid seen, timeout, session id, password, and whether a read-only server
will do."""
_REPLY: Final = struct.Struct("!iiqi16s")
_EXISTS, _CLOSE = 3, -11


class ProbeError(Exception):
    """The member does not answer, or not like a ZooKeeper server."""


class Status(NamedTuple):
    """The reply to `srvr`; missing fields are "" or -1 (all of them, if it is not allowed)."""

    version: str = ""
    mode: str = ""
    node_count: int = -1


def status(address: Address, member: Member, timeout_s: float) -> Status:
    """Return a member's reply to `srvr`. Raises ProbeError if it cannot be reached."""
    try:
        with _connected(address, member, timeout_s) as connection:
            connection.sendall(b"srvr")
            said = _read_to_end(connection).decode(errors="replace")
    except OSError as error:
        raise ProbeError(str(error)) from error
    if "not currently serving requests" in said:
        return Status(mode=NOT_SERVING)
    fields = dict(line.split(": ", 1) for line in said.splitlines() if ": " in line)
    count = fields.get("Node count", "")
    return Status(
        fields.get("Zookeeper version", "").split("-")[0].split(",")[0],
        fields.get("Mode", ""),
        int(count) if count.isascii() and count.isdigit() else -1,
    )


class Session:
    """A session with one member, without kazoo, closed on leaving the `with` block."""

    def __init__(
        self, address: Address, member: Member, session_timeout_ms: int, timeout_s: float
    ) -> None:
        try:
            self._connection = _connected(address, member, timeout_s)
        except OSError as error:
            raise ProbeError(str(error)) from error
        try:
            self._send(_REQUEST.pack(0, 0, session_timeout_ms, 0, 16, bytes(16), False))
            reply = self._receive()
            if len(reply) < _REPLY.size:
                raise ProbeError(f"answered a handshake with {len(reply)} bytes")
            self.timeout_ms: int = _REPLY.unpack_from(reply)[1]
        except BaseException:
            self._connection.close()
            raise

    def accepts(self, size: int) -> bool:
        """Return whether the server reads a request of this size, made by a long node name."""
        path = b"/".ljust(size - 13, b"x")
        try:
            self._send(struct.pack("!iii", 1, _EXISTS, len(path)) + path + b"\x00")
            self._receive()
        except ProbeError:
            return False
        return True

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            self._send(struct.pack("!ii", 2, _CLOSE))
            _read_to_end(self._connection)
        except (OSError, ProbeError):
            pass  # the server ends the session after its timeout
        finally:
            self._connection.close()

    def _send(self, body: bytes) -> None:
        try:
            self._connection.sendall(struct.pack("!i", len(body)) + body)
        except OSError as error:
            raise ProbeError(str(error)) from error

    def _receive(self) -> bytes:
        (size,) = struct.unpack("!i", self._exactly(4))
        if not 0 <= size <= REPLY_MAX:
            raise ProbeError(f"announced a reply of {size} bytes")
        return self._exactly(size)

    def _exactly(self, size: int) -> bytes:
        found = b""
        try:
            while len(found) < size:
                piece = self._connection.recv(size - len(found))
                if not piece:
                    raise ProbeError("closed the connection")
                found += piece
        except OSError as error:
            raise ProbeError(str(error)) from error
        return found


def _connected(address: Address, member: Member, timeout_s: float) -> socket.socket:
    connection = socket.create_connection((member.host, member.port), timeout_s)
    if address.tls is None:
        return connection
    try:
        return address.tls.context.wrap_socket(connection, server_hostname=member.host)
    except BaseException:
        connection.close()
        raise


def _read_to_end(connection: socket.socket) -> bytes:
    found = b""
    while len(found) < REPLY_MAX and (piece := connection.recv(4096)):
        found += piece
    return found
