"""Blocking connections: each is used by one thread at a time."""

from __future__ import annotations

import os
import socket
from collections import deque
from collections.abc import Callable, Sequence
from time import monotonic
from typing import Any, Final

from lockfast.errors import StoreUnavailableError
from lockfast.runtimes import platform
from lockfast.stores.http.members import Member, Members, broken, ended, unreachable
from lockfast.stores.http.messages import (
    LineReader,
    ProtocolError,
    ReplyReader,
    Request,
    Response,
    whole,
)
from lockfast.stores.stream import Stream, left_s, not_sent
from lockfast.stores.waker import Waker

IDLE_MAX: Final = 32
"""Connections kept for the next burst of callers, to each member."""

_inherited: Final[list[Connection]] = []
"""Connections inherited from a parent process: neither used nor closed here."""


class Connection:
    """One socket to one member."""

    def __init__(self, members: Members, member: Member, until_s: float) -> None:
        self.label = members.label
        self.member = member
        try:
            opened = _connected(member, left_s(until_s))
            try:
                if members.tls is not None:
                    opened.settimeout(left_s(until_s))
                    opened = members.tls.wrap_socket(opened, server_hostname=member.host)
            except BaseException:
                opened.close()
                raise
        except OSError as error:
            raise unreachable(self.label, error) from error
        self.stream = Stream(opened)

    def send(self, packed: bytes, until_s: float) -> None:
        """Send a request; until its last byte is sent, the member cannot have executed it."""
        try:
            self.stream.send(packed, until_s)
        except OSError as error:
            raise not_sent(self.label, error) from error

    def exchange(self, packed: bytes, until_s: float) -> Response:
        """Send a request and wait for the complete reply."""
        self.send(packed, until_s)
        try:
            data = self.stream.receive(until_s)
            response = whole(data)
            if response is not None:
                return response
            reader = ReplyReader()
            reader.feed(data)
            while not reader.done:
                left_s(until_s)  # also while bytes arrive slowly
                reader.feed(self.stream.receive(until_s))
        except (OSError, ProtocolError) as error:
            raise broken(self.label, error) from error
        return reader.response()

    def close(self) -> None:
        self.stream.close()


def _connected(member: Member, timeout_s: float) -> socket.socket:
    if not member.is_path:
        opened = socket.create_connection(member, timeout_s)
        opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return opened
    opened = socket.socket(socket.AF_UNIX)
    try:
        opened.settimeout(timeout_s)
        opened.connect(member.host)
    except BaseException:
        opened.close()
        raise
    return opened


class Pool:
    """Requests from any number of threads, on as many connections as there are requests."""

    def __init__(self, members: Members) -> None:
        self.members = members
        self._idle: dict[Member, deque[Connection]] = {}
        self._process = os.getpid()
        self._closed = False
        self.connections = 0
        """The number of connections made so far; a new one may lead to another member."""

    async def exchange(self, member: Member, request: Request, until_s: float) -> Response:
        """Send a request and wait for its reply.

        Raises StoreUnavailableError if the request was certainly not sent, else
        OutcomeUnknownError.
        """
        connection = self._take(member, until_s)
        try:
            response = connection.exchange(request.packed(str(member)), until_s)
        except BaseException:
            connection.close()
            raise
        idle = self._idle.setdefault(member, deque())
        if self._closed or not response.keeps or len(idle) >= IDLE_MAX:
            connection.close()
        else:
            idle.append(connection)
        return response

    async def follow(
        self,
        member: Member,
        request: Request,
        until_s: float,
        take: Callable[[Sequence[dict[str, Any]]], bool],
    ) -> None:
        """Read a streamed reply until `take` returns True for the lines that have arrived."""
        connection, reader = Connection(self.members, member, until_s), LineReader()
        try:
            connection.send(request.packed(str(member)), until_s)
            while not take(reader.feed(connection.stream.receive(until_s))):
                if reader.done:
                    raise ended(self.members.label)
        except (OSError, ProtocolError) as error:
            raise ended(self.members.label, error) from error
        finally:
            connection.close()

    async def pause(self, span_s: float) -> None:
        platform.poll().poll(span_s * 1000)

    def _take(self, member: Member, until_s: float) -> Connection:
        if self._process != os.getpid():
            for inherited in self._idle.values():
                _inherited.extend(inherited)
            self._idle = {}
            self._process = os.getpid()
        idle = self._idle.get(member, deque())
        while True:
            try:
                connection = idle.pop()
            except IndexError:
                self.connections += 1
                return Connection(self.members, member, until_s)
            if connection.stream.is_usable():
                return connection
            connection.close()

    def close(self) -> None:
        self._closed = True
        if self._process == os.getpid():
            for idle in self._idle.values():
                while idle:
                    idle.pop().close()


class LineStream:
    """A streamed reply for which one thread waits and which any thread may interrupt."""

    def __init__(self, members: Members) -> None:
        self._members = members
        self._connection: Connection | None = None
        self._failures = 0
        self._reader = LineReader()
        self._waker = Waker()
        self._process = os.getpid()

    def open(self, request: Request, until_s: float) -> None:
        self.drop()
        member = self._members.current
        self._failures = self._members.failures[member]
        try:
            connection = Connection(self._members, member, until_s)
        except StoreUnavailableError:
            self._members.suspect(member)
            raise
        try:
            connection.send(request.packed(str(member)), until_s)
        except BaseException:
            connection.close()
            raise
        self._reader = LineReader()
        self._connection = connection

    def is_open(self) -> bool:
        return self._connection is not None

    def next(self, timeout_s: float | None) -> list[dict[str, Any]]:
        """Return the lines that have arrived; none after `timeout_s` or an interrupt."""
        connection = self._connection
        poll = platform.poll()
        poll.register(self._waker, platform.POLLIN)
        if connection is not None:
            if self._members.failures[connection.member] > self._failures:
                # Other requests got no answer from this member: it may stay silent forever.
                self.drop()
                raise StoreUnavailableError(self._members.label, "a member stopped answering")
            poll.register(connection.stream, platform.POLLIN)
        ready = dict(poll.poll(None if timeout_s is None else max(0, timeout_s * 1000)))
        if self._waker.fileno() in ready:
            self._waker.take()
        return self._read(connection) if connection is not None else []

    def _read(self, connection: Connection) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        try:
            # Until nothing is left: TLS may have buffered more than the socket shows.
            while (
                not self._reader.done and (data := connection.stream.receive_nowait()) is not None
            ):
                found += self._reader.feed(data)
        except (OSError, ProtocolError) as error:
            self._fail(connection)
            raise ended(self._members.label, error) from error
        if self._reader.done:
            self.drop()
            if not found:
                raise ended(self._members.label)
        return found

    def _fail(self, connection: Connection) -> None:
        self._members.suspect(connection.member)
        self.drop()

    def interrupt(self) -> None:
        self._waker.interrupt()

    def drop(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def close(self) -> None:
        if self._process == os.getpid():
            self.drop()
            self._waker.close()


def deadline(timeout_ms: int) -> float:
    return monotonic() + timeout_ms / 1000
