"""Connections for asyncio: one request at a time on each, as many as there are requests."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable, Sequence
from time import monotonic
from typing import Any, Final

from lockfast.errors import StoreUnavailableError
from lockfast.stores.http.members import Member, Members, broken, ended, unreachable
from lockfast.stores.http.messages import (
    LineReader,
    ProtocolError,
    ReplyReader,
    Request,
    Response,
    whole,
)
from lockfast.stores.stream import RECEIVE_BYTES

IDLE_MAX: Final = 64


class _Streams:
    """One connection of one event loop."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        self.loop = loop
        self.reader = reader
        self.writer = writer

    def is_usable(self) -> bool:
        return not (self.reader.at_eof() or self.writer.is_closing())

    def close(self) -> None:
        self.writer.transport.abort()


class AsyncPool:
    """Requests from the tasks of one event loop."""

    def __init__(self, members: Members) -> None:
        self.members = members
        self._idle: dict[Member, deque[_Streams]] = {}
        self._closed = False
        self.connections = 0

    async def exchange(self, member: Member, request: Request, until_s: float) -> Response:
        """Send a request and wait for its reply.

        Raises StoreUnavailableError if the request was certainly not sent, else
        OutcomeUnknownError.
        """
        streams = await self._take(member, until_s)
        try:
            response = await self._exchange(streams, request.packed(str(member)), until_s)
        except BaseException:
            streams.close()  # also when cancelled: no caller is left for a late reply
            raise
        idle = self._idle.setdefault(member, deque())
        if self._closed or not response.keeps or len(idle) >= IDLE_MAX:
            streams.close()
        else:
            idle.append(streams)
        return response

    async def _exchange(self, streams: _Streams, packed: bytes, until_s: float) -> Response:
        reader = ReplyReader()
        try:
            async with asyncio.timeout(max(0, until_s - monotonic())):
                streams.writer.write(packed)
                while not reader.done:
                    data = await streams.reader.read(RECEIVE_BYTES)
                    response = whole(data) if not reader.status else None
                    if response is not None:
                        return response
                    reader.feed(data)
        except (OSError, ProtocolError) as error:
            raise broken(self.members.label, error) from error
        return reader.response()

    async def follow(
        self,
        member: Member,
        request: Request,
        until_s: float,
        take: Callable[[Sequence[dict[str, Any]]], bool],
    ) -> None:
        """Read a streamed reply until `take` returns True for the lines that have arrived."""
        streams = await self._connect(member, until_s)
        reader = LineReader()
        try:
            async with asyncio.timeout(max(0, until_s - monotonic())):
                streams.writer.write(request.packed(str(member)))
                while not take(reader.feed(await streams.reader.read(RECEIVE_BYTES))):
                    if reader.done:
                        raise ended(self.members.label)
        except (OSError, ProtocolError) as error:
            raise ended(self.members.label, error) from error
        finally:
            streams.close()

    async def pause(self, span_s: float) -> None:
        await asyncio.sleep(span_s)

    async def _take(self, member: Member, until_s: float) -> _Streams:
        loop = asyncio.get_running_loop()
        idle = self._idle.get(member, deque())
        while idle:
            streams = idle.pop()
            if streams.loop is not loop:
                _abort(streams)
            elif streams.is_usable():
                return streams
            else:
                streams.close()
        return await self._connect(member, until_s)

    async def _connect(self, member: Member, until_s: float) -> _Streams:
        label = self.members.label
        self.connections += 1
        try:
            async with asyncio.timeout(max(0, until_s - monotonic())):
                if member.is_path:
                    reader, writer = await asyncio.open_unix_connection(member.host)
                else:
                    reader, writer = await asyncio.open_connection(
                        member.host, member.port, ssl=self.members.tls
                    )
        except TimeoutError as error:
            raise StoreUnavailableError(label, "could not be reached in time") from error
        except OSError as error:
            raise unreachable(label, error) from error
        return _Streams(asyncio.get_running_loop(), reader, writer)

    def close(self) -> None:
        self._closed = True
        for idle in self._idle.values():
            while idle:
                _abort(idle.pop())


def _abort(streams: _Streams) -> None:
    """Close a connection whose event loop may run on another thread, or not at all."""
    with contextlib.suppress(RuntimeError):
        streams.loop.call_soon_threadsafe(streams.close)
