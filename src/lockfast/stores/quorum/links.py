"""A non-blocking connection to one node.

A dead or silent node must not delay its callers, so connecting, greeting, sending and receiving
are steps of one small state machine. Its driver polls the socket: a loop over all nodes in the
blocking API, the event loop in asyncio. A `Framing` knows the protocol: Redis, or HTTP.

A request is either unsent (the node certainly has not seen it, and it can be withdrawn) or sent,
and then answered in order. If a node leaves a request unanswered for STALL_S, the connection is
closed, and the outcome of the requests sent on it is unknown.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from enum import Enum
from time import monotonic
from typing import Any, Final, NamedTuple, Protocol

from lockfast.errors import LockfastError, StoreError, StoreUnavailableError
from lockfast.stores.quorum.messages import NoAnswer
from lockfast.stores.stream import IDLE_S, tune

STALL_S: Final = 2.0
RETRY_FIRST_S: Final = 0.05
RETRY_MAX_S: Final = 0.5
RECEIVE_BYTES: Final = 65536
_AGAIN: Final = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)

Tell = Callable[[Any], None]
"""Receives a reply, or a `NoAnswer`."""


class State(Enum):
    CLOSED = "closed"
    CONNECTING = "connecting"
    SHAKING = "shaking hands"
    GREETING = "greeting"
    READY = "ready"


class Endpoint(NamedTuple):
    """Where a node listens."""

    label: str
    host: str = ""
    port: int = 0
    path: str = ""
    """The path of a Unix socket, instead of host and port."""
    tls: ssl.SSLContext | None = None

    def __repr__(self) -> str:
        return f"<Endpoint {self.label}>"


class Framing(Protocol):
    """The protocol on one connection; each connection has a new one."""

    @property
    def window(self) -> int:
        """How many requests may be unanswered; others wait unsent, so that they can be withdrawn
        if a slow node does not get to them in time."""
        ...

    @property
    def is_over(self) -> bool:
        """Whether the node takes no more requests on this connection."""
        ...

    def greeting(self) -> Sequence[bytes]:
        """Return what to send first; each part has one reply. Raises StoreError."""
        ...

    def check_greeting(self, reply: Any) -> LockfastError | None:
        """Return why the connection cannot be used, judging by a reply to the greeting."""
        ...

    def objection(self) -> StoreError | None:
        """Return why no more requests may be sent, judging by what other connections found."""
        ...

    def feed(self, data: bytes) -> Iterator[Any]:
        """Yield the replies that are complete now. Raises OSError if they are malformed."""
        ...

    def refusal(self, reply: Any) -> NoAnswer | None:
        """Return why a reply is no answer to a request; None if it is one."""
        ...

    def unreachable(self, error: OSError) -> StoreError:
        """Return the error for a connection that failed."""
        ...


class Waiting(NamedTuple):
    since_s: float
    packed: bytes
    tell: Tell
    flight: object
    """What may withdraw it; None if nothing may."""


class Link:
    """The connection to one node."""

    def __init__(
        self,
        endpoint: Endpoint,
        framing: Callable[[], Framing],
        on_push: Callable[[Any], None] | None = None,
    ) -> None:
        self.endpoint = endpoint
        self.socket: socket.socket | None = None
        self.state = State.CLOSED
        self.retry_at_s = 0.0
        self._new_framing = framing
        self._framing = framing()
        self._on_push = on_push
        self._retry_s = RETRY_FIRST_S
        self._failures = 0
        """How often it could not connect; the next address of the host is tried then."""
        self._error: LockfastError = StoreUnavailableError(endpoint.label, "not connected yet")
        self._out = bytearray()
        self._sent: deque[tuple[float, Tell]] = deque()
        self._waiting: deque[Waiting] = deque()
        self._began_s = 0.0
        self._used_s = 0.0

    # ── for its driver ───────────────────────────────────────────────────────────────

    @property
    def wants_write(self) -> bool:
        return self.state is State.CONNECTING or bool(self._out)

    def request(self, packed: bytes, tell: Tell, flight: object) -> None:
        """Send a request, or keep it until the connection is established."""
        now_s = self.refresh()
        if self.state is State.READY and (objection := self._framing.objection()) is not None:
            self._fail(objection)
        if self.state is State.CLOSED:
            tell(NoAnswer(self._error))
        elif self.state is not State.READY or len(self._sent) >= self._framing.window:
            self._waiting.append(Waiting(now_s, packed, tell, flight))
        else:
            self._used_s = now_s
            self._sent.append((now_s, tell))
            self._write(packed)

    def refresh(self) -> float:
        """Close a stalled connection, and reconnect once the retry delay has passed.

        Return the current time.
        """
        now_s = monotonic()
        if self.state is State.READY:
            if self._sent and now_s - self._sent[0][0] > STALL_S:
                self._fail(StoreUnavailableError(self.endpoint.label, "did not answer in time"))
            elif not self._sent and now_s - self._used_s > IDLE_S:
                self.step()  # the node may have closed an idle connection
        elif self.state is not State.CLOSED and now_s - self._began_s > STALL_S:
            self._fail(StoreUnavailableError(self.endpoint.label, "could not be reached in time"))
        while self._waiting and now_s - self._waiting[0].since_s > STALL_S:
            self._waiting.popleft().tell(self._not_sent())
        if self.state is State.CLOSED and now_s >= self.retry_at_s:
            self._connect(now_s)
        return now_s

    def withdraw(self, flight: object) -> None:
        """Drop the requests of a flight that were not sent."""
        if not self._waiting:
            return
        dropped = [each for each in self._waiting if each.flight is flight]
        self._waiting = deque(each for each in self._waiting if each.flight is not flight)
        for each in dropped:
            each.tell(self._not_sent())

    def _not_sent(self) -> NoAnswer:
        return NoAnswer(StoreUnavailableError(self.endpoint.label, "is too slow"))

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
            self._fail(self._framing.unreachable(error))

    def close(self) -> None:
        self._fail(StoreUnavailableError(self.endpoint.label, "the connection was closed"))

    # ── steps ────────────────────────────────────────────────────────────────────────

    def _connect(self, now_s: float) -> None:
        endpoint = self.endpoint
        self._began_s = now_s
        self.retry_at_s = now_s + self._retry_s
        self._retry_s = min(2 * self._retry_s, RETRY_MAX_S)
        try:
            if endpoint.path:
                opened = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
                where: Any = endpoint.path
            else:
                found = socket.getaddrinfo(endpoint.host, endpoint.port, type=socket.SOCK_STREAM)
                family, kind, protocol, _, where = found[self._failures % len(found)]
                opened = socket.socket(family, kind, protocol)
            opened.setblocking(False)
            self.socket, self.state = opened, State.CONNECTING
            self._framing = self._new_framing()
            with contextlib.suppress(BlockingIOError):
                opened.connect(where)
                self._connected()
        except OSError as error:
            self._fail(self._framing.unreachable(error))

    def _connected(self) -> None:
        assert self.socket is not None
        error = self.socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if error:
            raise OSError(error, "connection refused")
        self.socket.getpeername()  # raises OSError after a spurious wake-up
        if not self.endpoint.path:
            tune(self.socket)
        if self.endpoint.tls is None:
            self._greet()
            return
        self.socket = self.endpoint.tls.wrap_socket(
            self.socket, server_hostname=self.endpoint.host, do_handshake_on_connect=False
        )
        self.state = State.SHAKING

    def _greet(self) -> None:
        self.state = State.GREETING
        try:
            *first, last = self._framing.greeting()
        except StoreError as error:
            self._fail(error)
            return
        for packed in first:
            self._sent.append((monotonic(), self._check_greeting))
            self._out += packed
        self._sent.append((monotonic(), self._greeted))
        self._write(last)

    def _check_greeting(self, reply: Any) -> None:
        error = self._framing.check_greeting(reply)
        if error is not None:
            self._fail(error)

    def _greeted(self, reply: Any) -> None:
        self._check_greeting(reply)
        if self.state is not State.GREETING:
            return
        self.state = State.READY
        self._retry_s = RETRY_FIRST_S
        self._send_waiting()

    def _send_waiting(self) -> None:
        if not self._waiting or self.state is not State.READY or self._framing.is_over:
            return
        while self._waiting and len(self._sent) < self._framing.window:
            _, packed, tell, _ = self._waiting.popleft()
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
            self._fail(self._framing.unreachable(error))
            return
        self._out = bytearray(packed[sent:]) if sent < len(packed) else bytearray()

    def _read(self) -> None:
        opened = self.socket
        while opened is not None and opened is self.socket:
            data = opened.recv(RECEIVE_BYTES)
            if not data:
                raise ConnectionResetError("the node closed the connection")
            for reply in self._framing.feed(data):
                self._take(reply)
                if opened is not self.socket:
                    return  # handling the reply has closed the connection
            if self._framing.is_over:
                raise ConnectionResetError("the node ended the connection")
            if len(data) < RECEIVE_BYTES and self.endpoint.tls is None:
                return

    def _take(self, reply: Any) -> None:
        if not self._sent:
            if self._on_push is not None:
                self._on_push(reply)
            return
        _, tell = self._sent.popleft()
        if self.state is not State.READY:
            tell(reply)
            return
        tell(self._framing.refusal(reply) or reply)
        self._send_waiting()

    def _fail(self, error: LockfastError) -> None:
        """Close the connection. The outcome of requests sent on it is unknown."""
        opened, self.socket = self.socket, None
        self._failures += self.state is State.CONNECTING
        self.state, self._error = State.CLOSED, error
        if opened is not None:
            opened.close()
        self._out.clear()
        greeting = {self._check_greeting, self._greeted}
        sent, self._sent = self._sent, deque()
        waiting, self._waiting = self._waiting, deque()
        for _, tell in sent:
            if tell not in greeting:
                tell(NoAnswer(error, maybe=True))
        for each in waiting:
            each.tell(NoAnswer(error))
