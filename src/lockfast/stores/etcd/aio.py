"""Connections for asyncio: one request at a time on each, as many as there are requests."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections import deque
from time import monotonic
from typing import Final

from lockfast.errors import StoreUnavailableError
from lockfast.ports import Wire
from lockfast.stores.etcd import EtcdStore
from lockfast.stores.etcd.address import Address, Endpoint
from lockfast.stores.etcd.errors import no_certificate, unreachable
from lockfast.stores.etcd.gateway import Enough
from lockfast.stores.etcd.http import ProtocolError, ReplyReader, Response, whole
from lockfast.stores.stream import RECEIVE_BYTES, in_doubt

IDLE_MAX: Final = 64


class AsyncEtcdStore(EtcdStore):
    """As EtcdStore, with callers that give way while a request is under way."""

    def caller_wire(self) -> Wire:
        return self._wire(AsyncTransport(self.cluster.address))


class _Streams:
    """One connection, of one event loop."""

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


class AsyncTransport:
    """Requests of the tasks of one event loop."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._idle: dict[Endpoint, deque[_Streams]] = {}
        self._closed = False

    async def exchange(
        self, endpoint: Endpoint, packed: bytes, until_s: float, enough: Enough | None = None
    ) -> Response:
        streams = await self._take(endpoint, until_s)
        try:
            response = await self._exchange(streams, packed, until_s, enough)
        except BaseException:
            streams.close()  # also when cancelled: a late reply is nobody's
            raise
        idle = self._idle.setdefault(endpoint, deque())
        if self._closed or not response.keeps or len(idle) >= IDLE_MAX:
            streams.close()
        else:
            idle.append(streams)
        return response

    async def _exchange(
        self, streams: _Streams, packed: bytes, until_s: float, enough: Enough | None
    ) -> Response:
        label = self._address.label
        reader = ReplyReader()
        try:
            async with asyncio.timeout(max(0, until_s - monotonic())):
                streams.writer.write(packed)
                while not reader.done:
                    data = await streams.reader.read(RECEIVE_BYTES)
                    response = whole(data) if enough is None and not reader.status else None
                    if response is not None:
                        return response
                    reader.feed(data)
                    if enough is not None and reader.status == 200 and enough(reader.take()):
                        return Response(reader.status, b"", keeps=False)
        except ssl.SSLError as error:
            raise no_certificate(label, error) from error
        except (OSError, ProtocolError) as error:
            raise in_doubt(label, error) from error
        return reader.response()

    async def pause(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def _take(self, endpoint: Endpoint, until_s: float) -> _Streams:
        loop = asyncio.get_running_loop()
        idle = self._idle.get(endpoint, deque())
        while idle:
            streams = idle.pop()
            if streams.loop is not loop:
                _abort(streams)
            elif streams.is_usable():
                return streams
            else:
                streams.close()
        address = self._address
        try:
            async with asyncio.timeout(max(0, until_s - monotonic())):
                reader, writer = await asyncio.open_connection(
                    endpoint.host, endpoint.port, ssl=address.tls
                )
        except TimeoutError as error:
            raise StoreUnavailableError(address.label, "could not be reached in time") from error
        except OSError as error:
            raise unreachable(address.label, error) from error
        return _Streams(loop, reader, writer)

    def close(self) -> None:
        self._closed = True
        for idle in self._idle.values():
            while idle:
                _abort(idle.pop())


def _abort(streams: _Streams) -> None:
    # Of another loop, which may be closed: then there is nothing left to close.
    with contextlib.suppress(RuntimeError):
        streams.loop.call_soon_threadsafe(streams.close)
