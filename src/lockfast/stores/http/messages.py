"""The part of HTTP/1.1 that JSON gateways use: encode requests, decode replies."""

from __future__ import annotations

import json
from functools import lru_cache
from typing import Any, Final, NamedTuple

HEAD_MAX: Final = 64 * 1024
BODY_MAX: Final = 32 * 1024 * 1024
"""The maximum size of a whole reply, and of one line of a stream."""

_HEAD_END: Final = b"\r\n\r\n"
_LENGTH: Final = b"\r\nContent-Length: "
_CLOSE: Final = b"\r\nConnection: "

encode = json.JSONEncoder(ensure_ascii=False, check_circular=False, separators=(",", ":")).encode


class ProtocolError(Exception):
    """The received data is not acceptable HTTP or JSON: malformed, too large, or too deep."""


class Response(NamedTuple):
    """A complete reply."""

    status: int
    body: bytes
    keeps: bool
    """Whether the connection may be used again."""

    def json(self) -> dict[str, Any]:
        return json_object(self.body)


def json_object(data: bytes) -> dict[str, Any]:
    """Decode a JSON object. Raises ProtocolError for anything else."""
    try:
        found = json.loads(data)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        said = data[:80].decode(errors="replace")
        raise ProtocolError(f"answered {said!r}, which is not a JSON object")
    return found


class Request(NamedTuple):
    """A request, independent of the member it is sent to."""

    path: str
    """The path with its query, percent-encoded."""
    body: bytes = b""
    headers: tuple[str, ...] = ()
    method: str = "POST"

    def packed(self, host: str) -> bytes:
        head = _head(host, self.method, self.path, self.headers)
        return b"%s%d\r\n\r\n%s" % (head, len(self.body), self.body)


@lru_cache(64)
def _head(host: str, method: str, path: str, headers: tuple[str, ...]) -> bytes:
    lines = [f"{method} {path} HTTP/1.1", f"Host: {host}", *headers, "Content-Length: "]
    return "\r\n".join(lines).encode()


def whole(data: bytes) -> Response | None:
    """Return the reply if it arrived in one piece, as most do; None to use a ReplyReader."""
    if not data.startswith(b"HTTP/1.1 200 OK\r\n"):
        return None
    end = data.find(_HEAD_END)
    at = data.find(_LENGTH, 0, end)
    if end < 0 or at < 0 or data.find(_CLOSE, 0, end) >= 0:
        return None
    length = data[at + len(_LENGTH) : data.find(b"\r\n", at + len(_LENGTH))]
    body = data[end + len(_HEAD_END) :]
    return Response(200, body, True) if length == b"%d" % len(body) else None


class ReplyReader:
    """Parses bytes as they arrive; returns the body in pieces, and detects its end."""

    def __init__(self) -> None:
        self.status = 0
        self.done = False
        self.keeps = True
        self._data = bytearray()
        self._left: int | None = None
        """Remaining bytes of the body or of the chunk; None if it lasts until the connection
        closes."""
        self._chunked = False
        self._pieces: list[bytes] = []
        self._size = 0

    def feed(self, data: bytes) -> None:
        """Add received data; b"" is the end of the connection."""
        if not data:
            if self.status and self._left is None and not self._chunked:
                self.done, self.keeps = True, False
                return
            if not self.status and not self._data:
                raise ProtocolError("the connection was closed without a reply")
            raise ProtocolError("the connection ended in the middle of a reply")
        self._data += data
        if not self.status and not self._head_is_whole():
            return
        while not self.done and (self._chunk() if self._chunked else self._plain()):
            pass

    def take(self) -> bytes:
        """Return the part of the body that arrived since the last call."""
        taken = b"".join(self._pieces)
        self._pieces.clear()
        self._size = 0
        return taken

    def response(self) -> Response:
        return Response(self.status, self.take(), self.keeps)

    def rest(self) -> bytes:
        """Return what has arrived after this reply."""
        return bytes(self._data)

    def _head_is_whole(self) -> bool:
        end = self._data.find(_HEAD_END)
        if end < 0 and len(self._data) <= HEAD_MAX:
            return False
        if not 0 <= end <= HEAD_MAX:
            raise ProtocolError(f"sent a head of more than {HEAD_MAX} bytes")
        first, *lines = self._data[:end].decode("latin-1").split("\r\n")
        del self._data[: end + len(_HEAD_END)]
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
            raise ProtocolError(f"sent {first[:80]!r}, which is not HTTP/1.1") from None
        if not version.startswith("HTTP/1.") or (self._left or 0) < 0:
            raise ProtocolError(f"sent {first[:80]!r}, which is not HTTP/1.1")
        if (self._left or 0) > BODY_MAX:
            raise ProtocolError(f"announced a body of {self._left} bytes, the limit is {BODY_MAX}")
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
        """Process one step of a chunked body; return False if more bytes are needed."""
        assert self._left is not None
        if self._left > 0:
            self._move(min(self._left, len(self._data)))
            if self._left == 0:
                self._left = -2  # the line end after a chunk
            return bool(self._data)
        if self._left < 0:
            if len(self._data) < 2:
                return False
            del self._data[:2]
            self._left = 0
        end = self._data.find(b"\r\n")
        if end < 0:
            if len(self._data) > HEAD_MAX:
                raise ProtocolError("sent a chunk without a size")
            return False
        size = bytes(self._data[:end].split(b";")[0])
        try:
            self._left = int(size, 16)
        except ValueError:
            raise ProtocolError(f"sent a chunk of size {size[:20]!r}") from None
        if not 0 <= self._left <= BODY_MAX:
            raise ProtocolError(f"sent a chunk of {self._left} bytes, the limit is {BODY_MAX}")
        if self._left == 0:
            if len(self._data) < end + 4:
                return False
            self.done = True
            del self._data[: end + 4]
            return False
        del self._data[: end + 2]
        return bool(self._data)

    def _move(self, count: int) -> None:
        self._size += count
        if self._size > BODY_MAX:
            raise ProtocolError(f"sent a body of more than {BODY_MAX} bytes")
        self._pieces.append(bytes(self._data[:count]))
        del self._data[:count]
        if self._left is not None:
            self._left -= count


class LineReader:
    """Parses a streamed reply as it arrives, and returns each line of the body as an object."""

    def __init__(self) -> None:
        self._reply = ReplyReader()
        self._rest = b""

    @property
    def done(self) -> bool:
        return self._reply.done

    def feed(self, data: bytes) -> list[dict[str, Any]]:
        """Return the objects that are complete now; the last one may lack a line end."""
        self._reply.feed(data)
        *lines, self._rest = (self._rest + self._reply.take()).split(b"\n")
        if len(self._rest) > BODY_MAX:
            raise ProtocolError(f"sent a line of more than {BODY_MAX} bytes")
        if self.done:
            lines.append(self._rest)
        return [json_object(line) for line in lines if line.strip()]
