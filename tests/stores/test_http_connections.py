"""Connections to HTTP servers that do not answer, hang up, or are no longer needed."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path
from time import monotonic

import pytest

from lockfast.errors import OutcomeUnknownError, StoreUnavailableError
from lockfast.stores.http.asynchronous import AsyncPool
from lockfast.stores.http.blocking import LineStream
from lockfast.stores.http.members import Member, Members
from lockfast.stores.http.messages import Request

REQUEST = Request("/v1/locks")
REPLY = b'HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{"a":"b"}'
LINES = b'HTTP/1.1 200 OK\r\n\r\n{"a":"b"}\n'
PATIENCE_S = 30.0


class Server:
    """Sends a reply to the first request of each connection, and then stays silent."""

    def __init__(self, reply: bytes) -> None:
        self._reply = reply
        self.disconnected = asyncio.Event()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            await reader.readuntil(b"\r\n\r\n")
            writer.write(self._reply)
            while await reader.read(1024):
                pass
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()
        self.disconnected.set()


def with_server(
    path: Path, reply: bytes, story: Callable[[AsyncPool, Member], Awaitable[None]]
) -> None:
    """Run a story that must end with the connection closed."""

    async def tell() -> None:
        server, member = Server(reply), Member(str(path))
        async with await asyncio.start_unix_server(server.serve, path):
            pool = AsyncPool(Members("server", [member]))
            await story(pool, member)
            async with asyncio.timeout(PATIENCE_S):
                await server.disconnected.wait()
            pool.close()

    asyncio.run(tell())


def test_a_request_without_an_answer_has_an_unknown_outcome_and_ends_its_connection(
    tmp_path: Path,
) -> None:
    async def story(pool: AsyncPool, member: Member) -> None:
        assert (await pool.exchange(member, REQUEST, monotonic() + PATIENCE_S)).status == 200
        with pytest.raises(OutcomeUnknownError, match="did not answer in time"):
            await pool.exchange(member, REQUEST, monotonic())
        assert pool.connections == 1

    with_server(tmp_path / "server", REPLY, story)


def test_a_stream_that_is_no_longer_followed_is_closed(tmp_path: Path) -> None:
    async def story(pool: AsyncPool, member: Member) -> None:
        found: list[object] = []

        def take(lines: object) -> bool:
            found.append(lines)
            return bool(lines)

        await pool.follow(member, REQUEST, monotonic() + PATIENCE_S, take)
        assert found[-1] == [{"a": "b"}]

    with_server(tmp_path / "server", LINES, story)


def test_a_stream_that_breaks_continues_with_the_next_member(tmp_path: Path) -> None:
    path = str(tmp_path / "server")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen()
        members = Members("two", [Member(path), Member("/other")])
        stream = LineStream(members)
        stream.open(REQUEST, monotonic() + PATIENCE_S)
        listener.accept()[0].close()
        with pytest.raises(StoreUnavailableError, match="broke a watch"):
            stream.next(PATIENCE_S)
        assert not stream.is_open()
        assert members.current == Member("/other")
        stream.close()
