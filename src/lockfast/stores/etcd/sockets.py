"""Connections for callers that block: each is used by one thread at a time."""

from __future__ import annotations

import os
import select
import socket
import ssl
from collections import deque
from typing import Final

from lockfast.stores.etcd.address import Address, Endpoint
from lockfast.stores.etcd.errors import no_certificate, unreachable
from lockfast.stores.etcd.gateway import Enough
from lockfast.stores.etcd.http import ProtocolError, ReplyReader, Response, whole
from lockfast.stores.stream import Stream, in_doubt, left_s, not_sent

IDLE_MAX: Final = 32
"""Connections kept for the next burst of callers, to each member."""

_inherited: Final[list[Connection]] = []
"""Connections of a parent process: neither used nor closed here."""


class Connection:
    """One socket to one member."""

    def __init__(self, address: Address, endpoint: Endpoint, until_s: float) -> None:
        self.label = address.label
        self.endpoint = endpoint
        try:
            opened = socket.create_connection(endpoint, left_s(until_s))
            try:
                opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                if address.tls is not None:
                    opened.settimeout(left_s(until_s))
                    opened = address.tls.wrap_socket(opened, server_hostname=endpoint.host)
            except BaseException:
                opened.close()
                raise
        except OSError as error:
            raise unreachable(self.label, error) from error
        self.stream = Stream(opened)

    def send(self, packed: bytes, until_s: float) -> None:
        """As long as the last byte is not out, the member cannot have carried it out."""
        try:
            self.stream.send(packed, until_s)
        except OSError as error:
            raise not_sent(self.label, error) from error

    def exchange(self, packed: bytes, until_s: float, enough: Enough | None = None) -> Response:
        """Send a request and wait for the whole reply, or for enough of it."""
        self.send(packed, until_s)
        try:
            data = self.stream.receive(until_s)
            response = whole(data) if enough is None else None
            if response is not None:
                return response
            reader = ReplyReader()
            while True:
                reader.feed(data)
                if enough is not None and reader.status == 200 and enough(reader.take()):
                    return Response(reader.status, b"", keeps=False)
                if reader.done:
                    break
                data = self.stream.receive(until_s)
        except ssl.SSLError as error:
            if "ALERT" in str(error):  # with TLS 1.3 it comes after our side is done
                raise no_certificate(self.label, error) from error
            raise in_doubt(self.label, error) from error
        except (OSError, ProtocolError) as error:
            raise in_doubt(self.label, error) from error
        return reader.response()

    def close(self) -> None:
        self.stream.close()


class BlockingTransport:
    """Requests from any number of threads."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._idle: dict[Endpoint, deque[Connection]] = {}
        self._process = os.getpid()
        self._closed = False
        self.connections = 0
        """How many were made: a new one may lead to another member."""

    async def exchange(
        self, endpoint: Endpoint, packed: bytes, until_s: float, enough: Enough | None = None
    ) -> Response:
        connection = self._take(endpoint, until_s)
        try:
            response = connection.exchange(packed, until_s, enough)
        except BaseException:
            connection.close()
            raise
        idle = self._idle.setdefault(endpoint, deque())
        if self._closed or not response.keeps or len(idle) >= IDLE_MAX:
            connection.close()
        else:
            idle.append(connection)
        return response

    async def pause(self, seconds: float) -> None:
        select.select([], [], [], seconds)

    def _take(self, endpoint: Endpoint, until_s: float) -> Connection:
        if self._process != os.getpid():
            for inherited in self._idle.values():
                _inherited.extend(inherited)
            self._idle = {}
            self._process = os.getpid()
        idle = self._idle.get(endpoint, deque())
        while True:
            try:
                connection = idle.pop()
            except IndexError:
                self.connections += 1
                return Connection(self._address, endpoint, until_s)
            if connection.stream.is_usable():
                return connection
            connection.close()

    def close(self) -> None:
        self._closed = True
        if self._process == os.getpid():
            for idle in self._idle.values():
                while idle:
                    idle.pop().close()
