"""A non-blocking connection to one Redis node.

A dead or silent node must not delay its callers, so connecting, greeting, sending and receiving
are steps of one small state machine. Its driver polls the socket: a loop over all nodes in the
blocking API, the event loop in asyncio.

A request is either unsent (the node certainly has not seen it, and it can be withdrawn) or sent,
and then answered in order. If a node leaves a request unanswered for STALL_S, the connection is
closed, and the outcome of the requests sent on it is unknown.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
from collections import deque
from collections.abc import Callable, Sequence
from enum import Enum
from time import monotonic
from typing import Any, Final, NamedTuple

from lockfast.errors import StoreError, StoreUnavailableError
from lockfast.stores.passwords import plain
from lockfast.stores.quorum.messages import NoAnswer
from lockfast.stores.redis.address import Address
from lockfast.stores.redis.connection import tune, unreachable
from lockfast.stores.redis.errors import is_script_missing, translate
from lockfast.stores.redis.resp import PENDING, ProtocolError, ReplyReader, pack

STALL_S: Final = 1.0
RETRY_FIRST_S: Final = 0.05
RETRY_MAX_S: Final = 0.5
RECEIVE_BYTES: Final = 65536
ANSWER_BYTES_MAX: Final = 1 << 24
"""A session may have tens of thousands of locks, which a node lists in one answer."""
_AGAIN: Final = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)

Tell = Callable[[Any], None]
"""Receives a reply, or a `NoAnswer`."""


class State(Enum):
    CLOSED = "closed"
    CONNECTING = "connecting"
    SHAKING = "shaking hands"
    GREETING = "greeting"
    READY = "ready"


class Waiting(NamedTuple):
    packed: bytes
    tell: Tell
    flight: object


class Link:
    """The connection to one node."""

    def __init__(
        self,
        address: Address,
        greeting: Sequence[bytes],
        on_push: Callable[[Any], None] | None = None,
    ) -> None:
        self.address = address
        self.socket: socket.socket | None = None
        self.state = State.CLOSED
        self.retry_at_s = 0.0
        self._greeting = greeting
        self._on_push = on_push
        self._retry_s = RETRY_FIRST_S
        self._error: StoreError = StoreUnavailableError(address.label, "not connected yet")
        self._out = bytearray()
        self._sent: deque[tuple[float, Tell]] = deque()
        self._waiting: list[Waiting] = []
        self._reader = ReplyReader()
        self._began_s = 0.0

    # ── for its driver ───────────────────────────────────────────────────────────────

    @property
    def wants_write(self) -> bool:
        return self.state is State.CONNECTING or bool(self._out)

    def request(self, packed: bytes, tell: Tell, flight: object) -> None:
        """Send a request, or keep it until the connection is established."""
        now_s = self.refresh()
        if self.state is State.READY:
            self._sent.append((now_s, tell))
            self._write(packed)
        elif self.state is State.CLOSED:
            tell(NoAnswer(self._error))
        else:
            self._waiting.append(Waiting(packed, tell, flight))

    def refresh(self) -> float:
        """Close a stalled connection, and reconnect once the retry delay has passed.

        Return the current time.
        """
        now_s = monotonic()
        if self.state is State.READY:
            if self._sent and now_s - self._sent[0][0] > STALL_S:
                self._fail(StoreUnavailableError(self.address.label, "did not answer in time"))
        elif self.state is not State.CLOSED and now_s - self._began_s > STALL_S:
            self._fail(StoreUnavailableError(self.address.label, "could not be reached in time"))
        if self.state is State.CLOSED and now_s >= self.retry_at_s:
            self._connect(now_s)
        return now_s

    def withdraw(self, flight: object) -> None:
        """Drop the requests of a flight that were not sent."""
        if self._waiting:
            self._waiting = [each for each in self._waiting if each.flight is not flight]

    def step(self) -> None:
        """Continue as far as possible without blocking."""
        try:
            if self.state is State.CONNECTING:
                self._connected()
            if self.state is State.SHAKING:
                assert isinstance(self.socket, ssl.SSLSocket)
                self.socket.do_handshake()
                self._greet()
            if self._out:
                self._write(b"")
            self._read()
        except _AGAIN:
            return
        except OSError as error:
            self._fail(unreachable(self.address, error))

    def close(self) -> None:
        self._fail(StoreUnavailableError(self.address.label, "the connection was closed"))

    # ── steps ────────────────────────────────────────────────────────────────────────

    def _connect(self, now_s: float) -> None:
        address = self.address
        self._began_s = now_s
        self.retry_at_s = now_s + self._retry_s
        self._retry_s = min(2 * self._retry_s, RETRY_MAX_S)
        try:
            if address.path:
                opened = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
                where: Any = address.path
            else:
                found = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
                family, kind, protocol, _, where = found[0]
                opened = socket.socket(family, kind, protocol)
            opened.setblocking(False)
            self.socket, self.state = opened, State.CONNECTING
            self._reader = ReplyReader()
            self._reader.bytes_max = ANSWER_BYTES_MAX
            with contextlib.suppress(BlockingIOError):
                opened.connect(where)
                self._connected()
        except OSError as error:
            self._fail(unreachable(address, error))

    def _connected(self) -> None:
        assert self.socket is not None
        error = self.socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if error:
            raise OSError(error, "connection refused")
        self.socket.getpeername()  # raises OSError after a spurious wake-up
        if not self.address.path:
            tune(self.socket)
        if self.address.tls is None:
            self._greet()
            return
        self.socket = self.address.tls.wrap_socket(
            self.socket, server_hostname=self.address.host, do_handshake_on_connect=False
        )
        self.state = State.SHAKING

    def _greet(self) -> None:
        self.state = State.GREETING
        try:
            # Read again for each connection: the password may have changed.
            *first, last = (*_credentials(self.address), *self._greeting)
        except StoreError as error:
            self._fail(error)
            return
        for packed in first:
            self._sent.append((monotonic(), self._check_greeting))
            self._out += packed
        self._sent.append((monotonic(), self._greeted))
        self._write(last)

    def _check_greeting(self, reply: Any) -> None:
        if isinstance(reply, Exception):
            self._fail(translate(str(reply), self.address.label))

    def _greeted(self, reply: Any) -> None:
        self._check_greeting(reply)
        if self.state is not State.GREETING:
            return
        self.state = State.READY
        self._retry_s = RETRY_FIRST_S
        waiting, self._waiting = self._waiting, []
        for packed, tell, _ in waiting:
            self._sent.append((monotonic(), tell))
            self._out += packed
        self._write(b"")

    def _write(self, packed: bytes) -> None:
        if self._out:
            self._out += packed
            packed = bytes(self._out)
        if not packed:
            return
        assert self.socket is not None
        try:
            sent = self.socket.send(packed)
        except _AGAIN:
            sent = 0
        except OSError as error:
            self._fail(unreachable(self.address, error))
            return
        self._out = bytearray(packed[sent:]) if sent < len(packed) else bytearray()

    def _read(self) -> None:
        opened = self.socket
        while opened is not None and opened is self.socket:
            data = opened.recv(RECEIVE_BYTES)
            if not data:
                raise ConnectionResetError("the node closed the connection")
            self._reader.feed(data)
            try:
                # Handling an answer may close the connection.
                while opened is self.socket and (reply := self._reader.gets()) is not PENDING:
                    self._take(reply)
            except ProtocolError as error:
                raise ConnectionAbortedError(str(error)) from error
            if len(data) < RECEIVE_BYTES and self.address.tls is None:
                return

    def _take(self, reply: Any) -> None:
        if not self._sent:
            if self._on_push is not None:
                self._on_push(reply)
            return
        _, tell = self._sent.popleft()
        if isinstance(reply, Exception) and self.state is State.READY:
            error = translate(str(reply), self.address.label)
            tell(NoAnswer(error))
            if is_script_missing(str(reply)):
                self._fail(error)  # the greeting of the next connection loads the script
            return
        tell(reply)

    def _fail(self, error: StoreError) -> None:
        """Close the connection. The outcome of requests sent on it is unknown."""
        opened, self.socket = self.socket, None
        self.state, self._error = State.CLOSED, error
        if opened is not None:
            opened.close()
        self._out.clear()
        greeting = {self._check_greeting, self._greeted}
        sent, self._sent = self._sent, deque()
        waiting, self._waiting = self._waiting, []
        for _, tell in sent:
            if tell not in greeting:
                tell(NoAnswer(error, maybe=True))
        for each in waiting:
            each.tell(NoAnswer(error))


def _credentials(address: Address) -> list[bytes]:
    """Return the commands that are sent on a new connection before its greeting."""
    commands = []
    if address.username:
        password = plain(address.password, address.label)
        commands.append(pack("AUTH", address.username, password))
    elif address.password:
        commands.append(pack("AUTH", plain(address.password, address.label)))
    if address.db:
        commands.append(pack("SELECT", address.db))
    return commands
