"""The proxy does what it is told, on a server that echoes."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Iterator

import pytest

from tests.servers.proxy import DIRECTIONS, Cut, Direction, Proxy, Shape

SOON_S = 0.1
"""Nothing arrives within this time."""


@pytest.fixture
def proxy() -> Iterator[Proxy]:
    with socket.create_server(("127.0.0.1", 0)) as listener, contextlib.ExitStack() as stack:
        threading.Thread(target=echo_all, args=(listener,), daemon=True).start()
        stack.callback(listener.shutdown, socket.SHUT_RDWR)
        yield stack.enter_context(Proxy(listener.getsockname()))


def echo_all(listener: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while True:
            threading.Thread(target=echo, args=(listener.accept()[0],), daemon=True).start()


def echo(connection: socket.socket) -> None:
    with connection, contextlib.suppress(OSError):
        while data := connection.recv(1 << 16):
            connection.sendall(data)


def connect(proxy: Proxy) -> socket.socket:
    return socket.create_connection(("127.0.0.1", proxy.port), timeout=10)


def is_silent(connection: socket.socket) -> bool:
    connection.settimeout(SOON_S)
    try:
        connection.recv(1)
    except TimeoutError:
        return True
    finally:
        connection.settimeout(10)
    return False


def test_everything_passes_and_is_counted(proxy: Proxy) -> None:
    sent = bytes(range(256)) * 1000
    with connect(proxy) as connection:
        connection.sendall(sent)
        received = b""
        while len(received) < len(sent):
            received += connection.recv(1 << 16)
    assert received == sent
    assert proxy.passed("request") == proxy.passed("reply") == len(sent)


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_a_held_direction_delivers_later(proxy: Proxy, direction: Direction) -> None:
    with connect(proxy) as connection:
        proxy.shape(direction, Shape(held=True))
        connection.sendall(b"abc")
        assert is_silent(connection)
        proxy.heal()
        assert connection.recv(10) == b"abc"


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_a_connection_that_lost_something_stays_silent(proxy: Proxy, direction: Direction) -> None:
    with connect(proxy) as old, connect(proxy) as idle:
        proxy.shape(direction, Shape(lost=True))
        old.sendall(b"abc")
        assert is_silent(old)
        proxy.heal()
        old.sendall(b"def")
        assert is_silent(old)
        idle.sendall(b"ghi")
        assert idle.recv(10) == b"ghi"


def test_delayed_pieces_arrive_in_order(proxy: Proxy) -> None:
    with connect(proxy) as connection:
        proxy.shape("reply", Shape(delay_s=0.2))
        sent_at = time.monotonic()
        connection.sendall(b"first ")
        proxy.shape("reply", Shape(delay_s=0.05))
        connection.sendall(b"second")
        received = b""
        while len(received) < 12:
            received += connection.recv(100)
        assert received == b"first second"
        assert time.monotonic() - sent_at >= 0.05


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_a_cut_comes_at_its_byte_and_once(proxy: Proxy, direction: Direction) -> None:
    reached: list[int] = []
    proxy.arm(Cut(direction, 4), lambda: reached.append(proxy.passed(direction)))
    with connect(proxy) as connection:
        connection.sendall(b"abcdefgh")
        with pytest.raises(ConnectionResetError):
            while connection.recv(10):
                pass
    assert reached == [4]
    with connect(proxy) as connection:
        connection.sendall(b"again")
        assert connection.recv(10) == b"again"


def test_all_connections_are_reset_and_new_ones_refused(proxy: Proxy) -> None:
    with connect(proxy) as connection:
        connection.sendall(b"a")
        assert connection.recv(1) == b"a"
        proxy.refuse()
        proxy.reset()
        with pytest.raises(ConnectionResetError):
            connection.recv(1)
    with pytest.raises(ConnectionResetError), connect(proxy) as connection:
        connection.recv(1)
    proxy.heal()
    with connect(proxy) as connection:
        connection.sendall(b"a")
        assert connection.recv(1) == b"a"


def test_a_server_that_is_down_resets_its_clients() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        nobody = listener.getsockname()
    with Proxy(nobody) as proxy:
        # The reset may arrive before `connect` returns.
        with pytest.raises(ConnectionResetError), connect(proxy) as connection:
            connection.recv(1)
