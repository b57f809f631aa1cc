"""As much of HTTP/1.1 as the gateway speaks: requests as bytes, replies from bytes.

No sockets here: both faces and the watch feed it what they receive.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final, NamedTuple

HEAD_END: Final = b"\r\n\r\n"
LENGTH: Final = b"\r\nContent-Length: "
CLOSE: Final = b"\r\nConnection: "


class Response(NamedTuple):
    """A whole reply."""

    status: int
    body: bytes
    keeps: bool
    """Whether the connection may be used again."""


class ProtocolError(Exception):
    """What came is not HTTP as we know it."""


def request(host: str, path: str, body: bytes, *headers: str) -> bytes:
    return b"%s%d\r\n\r\n%s" % (_head(host, path, headers), len(body), body)


@lru_cache(64)
def _head(host: str, path: str, headers: tuple[str, ...]) -> bytes:
    lines = [f"POST {path} HTTP/1.1", f"Host: {host}", *headers, "Content-Length: "]
    return "\r\n".join(lines).encode()


def whole(data: bytes) -> Response | None:
    """A reply that came in one piece, as most do; None: it has to be read bit by bit."""
    if not data.startswith(b"HTTP/1.1 200 OK\r\n"):
        return None
    end = data.find(HEAD_END)
    at = data.find(LENGTH, 0, end)
    if end < 0 or at < 0 or data.find(CLOSE, 0, end) >= 0:
        return None
    length = data[at + len(LENGTH) : data.find(b"\r\n", at + len(LENGTH))]
    body = data[end + len(HEAD_END) :]
    return Response(200, body, True) if length == b"%d" % len(body) else None


class ReplyReader:
    """Takes bytes as they come; gives the body in pieces, and says when it is whole."""

    def __init__(self) -> None:
        self.status = 0
        self.done = False
        self.keeps = True
        self._data = bytearray()
        self._left: int | None = None
        """Bytes of the body, or of the chunk, still to come; None: until the end."""
        self._chunked = False
        self._pieces: list[bytes] = []

    def feed(self, data: bytes) -> None:
        """Take what was received; b"" is the end of the connection."""
        if not data:
            if self.status and self._left is None and not self._chunked:
                self.done, self.keeps = True, False
                return
            raise ProtocolError("the connection ended in the middle of a reply")
        self._data += data
        if not self.status and not self._head():
            return
        while not self.done and (self._chunk() if self._chunked else self._plain()):
            pass

    def take(self) -> bytes:
        """The part of the body that came since the last call."""
        taken = b"".join(self._pieces)
        self._pieces.clear()
        return taken

    def response(self) -> Response:
        return Response(self.status, self.take(), self.keeps)

    def _head(self) -> bool:
        end = self._data.find(HEAD_END)
        if end < 0:
            return False
        first, *lines = self._data[:end].decode("latin-1").split("\r\n")
        del self._data[: end + len(HEAD_END)]
        try:
            version, status, *_ = first.split(" ", 2)
            headers = {
                name.strip().lower(): value.strip()
                for name, _, value in (line.partition(":") for line in lines)
            }
            self.status = int(status)
            self._chunked = headers.get("transfer-encoding", "").lower() == "chunked"
            length = headers.get("content-length")
            self._left = 0 if self._chunked else None if length is None else int(length)
        except ValueError:
            raise ProtocolError(f"began with {first[:80]!r}") from None
        if not version.startswith("HTTP/1."):
            raise ProtocolError(f"began with {first[:80]!r}")
        self.keeps = headers.get("connection", "").lower() != "close"
        return True

    def _plain(self) -> bool:
        if self._left is None:
            self._move(len(self._data))
        else:
            self._move(min(self._left, len(self._data)))
            self.done = self._left == 0
        return False

    def _chunk(self) -> bool:
        """One step through a chunked body; False if more bytes are needed."""
        assert self._left is not None
        if self._left > 0:
            self._move(min(self._left, len(self._data)))
            if self._left == 0:
                self._left = -2  # the line end behind a chunk
            return bool(self._data)
        if self._left < 0:
            if len(self._data) < 2:
                return False
            del self._data[:2]
            self._left = 0
        end = self._data.find(b"\r\n")
        if end < 0:
            return False
        size = self._data[:end].split(b";")[0]
        try:
            self._left = int(size, 16)
        except ValueError:
            raise ProtocolError(f"has a chunk of size {bytes(size[:20])!r}") from None
        if self._left == 0:
            if len(self._data) < end + 4:
                return False
            self.done = True
            del self._data[: end + 4]
            return False
        del self._data[: end + 2]
        return bool(self._data)

    def _move(self, count: int) -> None:
        self._pieces.append(bytes(self._data[:count]))
        del self._data[:count]
        if self._left is not None:
            self._left -= count
