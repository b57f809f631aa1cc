"""Connections for callers that block: each is used by one thread at a time."""

from __future__ import annotations

import os
import select
import socket
import ssl
from collections import deque
from time import monotonic
from typing import Final

from lockfast.errors import StoreUnavailableError
from lockfast.stores.etcd.address import Address, Endpoint
from lockfast.stores.etcd.errors import in_doubt, no_certificate, unreachable
from lockfast.stores.etcd.gateway import Enough
from lockfast.stores.etcd.http import ProtocolError, ReplyReader, Response, whole

RECEIVE_BYTES: Final = 65536
IDLE_MAX: Final = 32
"""Connections kept for the next burst of callers, to each member."""
IDLE_S: Final = 0.05
"""A connection unused for this long is looked at before it is trusted."""

_inherited: Final[list[Connection]] = []
"""Connections of a parent process: neither used nor closed here."""


def left_s(until_s: float) -> float:
    """The time that is left; raises TimeoutError if there is none."""
    left = until_s - monotonic()
    if left <= 0:
        raise TimeoutError("no time left")
    return left


class Connection:
    """One socket to one member."""

    def __init__(self, address: Address, endpoint: Endpoint, until_s: float) -> None:
        self.label = address.label
        self.endpoint = endpoint
        self._used_s = monotonic()
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
        self.socket = opened
        self._timeout_s = 0.0
        """How long the socket waits at the most, as it was last told."""

    def send(self, packed: bytes, until_s: float) -> None:
        """As long as the last byte is not out, the member cannot have carried it out."""
        try:
            self._bound(left_s(until_s))
            self.socket.sendall(packed)
        except TimeoutError as error:
            raise StoreUnavailableError(
                self.label, "there was no time left to send the request"
            ) from error
        except OSError as error:
            raise StoreUnavailableError(
                self.label, "the connection broke before the request was sent"
            ) from error

    def exchange(self, packed: bytes, until_s: float, enough: Enough | None = None) -> Response:
        """Send a request and wait for the whole reply, or for enough of it."""
        self.send(packed, until_s)
        try:
            # A request is sent at once, so what the socket was told then is still right.
            data = self.socket.recv(RECEIVE_BYTES)
            response = whole(data) if enough is None else None
            if response is not None:
                self._used_s = monotonic()
                return response
            reader = ReplyReader()
            while True:
                reader.feed(data)
                if enough is not None and reader.status == 200 and enough(reader.take()):
                    return Response(reader.status, b"", keeps=False)
                if reader.done:
                    break
                self._bound(left_s(until_s))
                data = self.socket.recv(RECEIVE_BYTES)
        except ssl.SSLError as error:
            if "ALERT" in str(error):  # with TLS 1.3 it comes after our side is done
                raise no_certificate(self.label, error) from error
            raise in_doubt(self.label, error) from error
        except (OSError, ProtocolError) as error:
            raise in_doubt(self.label, error) from error
        self._used_s = monotonic()
        return reader.response()

    def is_usable(self) -> bool:
        """Whether nothing has come in that nobody asked for, such as the member's good-bye."""
        if monotonic() - self._used_s < IDLE_S:
            return True
        try:
            self._timeout_s = 0.0
            self.socket.settimeout(0)
            self.socket.recv(1)
        except (BlockingIOError, ssl.SSLWantReadError):
            return True
        except OSError:
            pass
        return False

    def _bound(self, left: float) -> None:
        """Have the socket give up in time, up to a tenth early.

        Not by the microsecond: to tell it anew is a system call, and most requests may
        take equally long.
        """
        if not 0.9 * left <= self._timeout_s <= left:
            self._timeout_s = 0.95 * left
            self.socket.settimeout(self._timeout_s)

    def close(self) -> None:
        self.socket.close()


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
            if connection.is_usable():
                return connection
            connection.close()

    def close(self) -> None:
        self._closed = True
        if self._process == os.getpid():
            for idle in self._idle.values():
                while idle:
                    idle.pop().close()
