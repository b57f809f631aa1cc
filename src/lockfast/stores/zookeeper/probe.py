"""Query one member of an ensemble in ways that kazoo cannot.

The queries are the four-letter word `srvr` (the only one that ZooKeeper allows by default) and a
session handshake, whose reply contains the session timeout that the server grants.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from typing import BinaryIO, Final, NamedTuple

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
        with address.connect(*member, member.host, timeout_s) as connection:
            connection.sendall(b"srvr")
            said = connection.makefile("rb").read(REPLY_MAX).decode(errors="replace")
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
    """A session with one member, without kazoo."""

    def __init__(self, connection: socket.socket, stream: BinaryIO, timeout_ms: int) -> None:
        """Ask for this session timeout."""
        self._connection = connection
        self._stream = stream
        reply = self._ask(_REQUEST.pack(0, 0, timeout_ms, 0, 16, bytes(16), False))
        if len(reply) < _REPLY.size:
            raise ProbeError(f"answered a handshake with {len(reply)} bytes")
        self.timeout_ms: int = _REPLY.unpack_from(reply)[1]
        """The session timeout that the server grants."""

    def accepts(self, size: int) -> bool:
        """Return whether the server reads a request of this size, made by a long node name."""
        path = b"/".ljust(size - 13, b"x")
        try:
            self._ask(struct.pack("!iii", 1, _EXISTS, len(path)) + path + b"\x00")
        except (OSError, ProbeError):
            return False
        return True

    def close(self) -> None:
        """End the session; if this fails, the server ends it after its timeout."""
        with suppress(OSError):
            self._connection.sendall(struct.pack("!iii", 8, 2, _CLOSE))
            self._stream.read(REPLY_MAX)

    def _ask(self, body: bytes) -> bytes:
        self._connection.sendall(struct.pack("!i", len(body)) + body)
        header = self._stream.read(4)
        size = struct.unpack("!i", header)[0] if len(header) == 4 else -1
        reply = self._stream.read(size) if 0 <= size <= REPLY_MAX else b""
        if len(reply) != size:
            raise ProbeError("does not answer like a ZooKeeper server")
        return reply


@contextmanager
def session(
    address: Address, member: Member, session_timeout_ms: int, timeout_s: float
) -> Iterator[Session]:
    """Open a session with one member. Raises ProbeError if that fails."""
    try:
        with (
            address.connect(*member, member.host, timeout_s) as connection,
            connection.makefile("rb") as stream,
            closing(Session(connection, stream, session_timeout_ms)) as opened,
        ):
            yield opened
    except OSError as error:
        raise ProbeError(str(error)) from error
