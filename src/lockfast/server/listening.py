"""Sockets, TLS, and limits on connections that ASGI does not cover."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import os
import socket
import ssl
import stat
from collections.abc import Callable
from typing import Any, Final, NamedTuple

import h11
from starlette.types import Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from lockfast.core.codec import encode_fields
from lockfast.errors import StoreMisconfiguredError
from lockfast.server.config import Tls
from lockfast.server.identity import PEER, Refusal, clean
from lockfast.server.problems import INVALID, MEDIA_TYPE, Problem

PORT: Final = 7601
HEADERS_MAX: Final = 16 * 1024
HEADERS_S: Final = 10.0
"""How long the head of a request may take to arrive."""
BACKLOG: Final = 2048
SYSTEMD_FIRST_FD: Final = 3
CERTIFICATE: Final = "cert:"
"""Prefix of principals from certificates, so that none can be mistaken for a token's."""


class Place(NamedTuple):
    """A place to listen: a host and a port, or the path of a Unix socket."""

    host: str = "127.0.0.1"
    port: int = PORT
    path: str = ""

    def __str__(self) -> str:
        if self.path:
            return f"http+unix://{self.path}"
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"

    @property
    def is_private(self) -> bool:
        """Whether only this machine can reach it."""
        if self.path or self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False  # a name, which may mean any address


def parse_place(text: str) -> Place:
    """Parse HOST:PORT, [::1]:PORT, :PORT, or the path of a socket. Raises ValueError."""
    if text.startswith("/"):
        return Place("", 0, text)
    host, colon, port = text.rpartition(":")
    if not colon or not port.isdigit() or int(port) > 65535:
        raise ValueError(f"{text!r} is neither HOST:PORT nor the path of a socket")
    host = host.strip("[]")
    return Place(host or "0.0.0.0", int(port))


def bind(place: Place) -> socket.socket:
    """Return a socket bound to a place. Raises StoreMisconfiguredError."""
    try:
        return _bind_path(place.path) if place.path else _bind_address(place)
    except OSError as error:
        raise StoreMisconfiguredError(
            str(place), f"cannot listen there ({error.strerror})", "choose another --listen"
        ) from None


def _bind_address(place: Place) -> socket.socket:
    family = socket.AF_INET6 if ":" in place.host else socket.AF_INET
    bound = socket.socket(family)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind((place.host, place.port))
    except BaseException:
        bound.close()
        raise
    return bound


def _bind_path(path: str) -> socket.socket:
    """Return a bound Unix socket that only this user can connect to."""
    with contextlib.suppress(FileNotFoundError):
        if not stat.S_ISSOCK(os.lstat(path).st_mode):
            raise StoreMisconfiguredError(path, "exists and is not a socket", "choose another path")
        with socket.socket(socket.AF_UNIX) as probe:
            try:
                probe.connect(path)
            except OSError:
                os.unlink(path)  # left by a server that was killed
            else:
                raise StoreMisconfiguredError(path, "is in use by another server", "stop it first")
    bound = socket.socket(socket.AF_UNIX)
    before = os.umask(0o177)
    try:
        bound.bind(path)
    except BaseException:
        bound.close()
        raise
    finally:
        os.umask(before)
    return bound


def inherited() -> list[socket.socket]:
    """Return the sockets that systemd has passed to this process."""
    if os.environ.get("LISTEN_PID") != str(os.getpid()):
        return []
    count = int(os.environ.get("LISTEN_FDS", "0"))
    return [socket.socket(fileno=SYSTEMD_FIRST_FD + at) for at in range(count)]


def place_of(bound: socket.socket) -> Place:
    """Return the place where a socket listens."""
    name = bound.getsockname()
    if bound.family == socket.AF_UNIX:
        return Place("", 0, os.fsdecode(name))
    return Place(name[0], name[1])


def tls_context(tls: Tls) -> ssl.SSLContext:
    """Return the server's TLS context. Raises StoreMisconfiguredError."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(tls.cert, tls.key, password="")
        if tls.client_ca:
            context.load_verify_locations(tls.client_ca)
            context.verify_mode = ssl.CERT_REQUIRED if tls.require_client else ssl.CERT_OPTIONAL
            # A resumed session would skip the check of its certificate.
            context.options |= ssl.OP_NO_TICKET
            context.num_tickets = 0
    except (OSError, ssl.SSLError) as error:
        raise StoreMisconfiguredError(
            tls.cert, f"cannot be loaded ({error})", "check cert, key and client_ca"
        ) from None
    return context


class ServerTls:
    """The TLS of a server whose certificate files can be read again.

    A context in use cannot be changed for that: loading only adds to the trusted CAs, so one that
    was removed would stay trusted, and a failed load leaves half of the new files behind. So each
    handshake in the listening context switches to the newest one.
    """

    def __init__(self, tls: Tls) -> None:
        self._tls = tls
        self.context = self._newest = tls_context(tls)
        self.context.sni_callback = self._switch

    def _switch(self, connection: Any, name: str | None, context: ssl.SSLContext) -> None:
        connection.context = self._newest

    def read_again(self) -> Callable[[], None]:
        """Read the files; return how to use them. Raises StoreMisconfiguredError."""
        context = tls_context(self._tls)

        def use() -> None:
            self._newest = context

        return use


def peer_of(transport: asyncio.BaseTransport) -> str:
    """Return the principal in a verified client certificate; "" if there is none.

    The name is the first URI of its subject alternative names, else the first DNS name, else the
    first e-mail address. The common name is not used: CAs do not check it.
    """
    tls = transport.get_extra_info("ssl_object")
    certificate: Any = tls.getpeercert() if tls is not None else None
    names = dict(reversed((certificate or {}).get("subjectAltName", ())))
    for kind in ("URI", "DNS", "email"):
        if kind in names:
            try:
                return clean(CERTIFICATE + names[kind])
            except Refusal:
                return ""
    return ""


def _send_at_once(transport: asyncio.BaseTransport) -> None:
    # asyncio sets TCP_NODELAY only on sockets created with an explicit protocol number, which those
    # from systemd lack. Head and body are two writes, so each reply would be delayed.
    opened = transport.get_extra_info("socket")
    if opened is not None and opened.family != socket.AF_UNIX:
        opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


class Protocol(H11Protocol):
    """uvicorn's HTTP/1.1, with a timeout for heads, client certificates, and problem documents."""

    _head_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        _send_at_once(transport)
        peer, app = peer_of(transport), self.app
        if peer:

            async def with_peer(scope: Scope, receive: Receive, send: Send) -> None:
                scope[PEER] = peer
                await app(scope, receive, send)

            self.app = with_peer
        self._expect_head()

    def data_received(self, data: bytes) -> None:
        if self._is_idle() and self._head_timer is None:
            self._expect_head()
        super().data_received(data)
        if not self._is_idle():
            self._drop_timer()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        # The beginning of the next head may have arrived already, behind this request.
        if self._is_idle() and self._head_timer is None and self.conn.trailing_data[0]:
            self._expect_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._drop_timer()
        super().connection_lost(exc)

    def _is_idle(self) -> bool:
        """Return whether no request is in progress."""
        return self.cycle is None or bool(self.cycle.response_complete)  # type: ignore[redundant-expr]

    def _expect_head(self) -> None:
        self._head_timer = self.loop.call_later(HEADERS_S, self._give_up)

    def _drop_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _give_up(self) -> None:
        self._head_timer = None
        if self._is_idle() and not self.transport.is_closing():
            self.transport.abort()

    def send_400_response(self, msg: str) -> None:
        body = encode_fields(
            Problem(400, INVALID, "this is not HTTP/1.1 as we accept it").document()
        )
        headers = [
            ("content-type", MEDIA_TYPE),
            ("content-length", str(len(body))),
            ("connection", "close"),
            ("x-content-type-options", "nosniff"),
            ("cache-control", "no-store"),
        ]
        with contextlib.suppress(h11.LocalProtocolError):  # a response is in progress
            for event in (
                h11.Response(status_code=400, headers=headers, reason=b"Bad Request"),
                h11.Data(data=body),
                h11.EndOfMessage(),
            ):
                self.transport.write(self.conn.send(event) or b"")
        self.transport.close()


def notify(state: str) -> None:
    """Send a state to systemd (Type=notify); do nothing without it."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address:
        return
    if address.startswith("@"):
        address = "\0" + address[1:]
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as out:
        out.connect(address)
        out.send(state.encode())
