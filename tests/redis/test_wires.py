"""The wires by themselves: what they send, and how long asyncio's keeps its loop from sleeping."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from time import monotonic
from typing import Any

import pytest

from lockfast.errors import StoreUnavailableError
from lockfast.stores.redis import aio
from lockfast.stores.redis.address import Address
from lockfast.stores.redis.connection import Connection, pack, pack_four
from lockfast.stores.stream import NEAR_S
from tests.servers.redis import RedisServer

PATIENCE_S = 30.0


@pytest.mark.parametrize("name", ["orders/42", "", "größer als ß", "鍵", "a\r\n$1\r\nb"])
def test_four_arguments_are_packed_as_any_number_is(name: str) -> None:
    arguments = ("s\x1fsession", "17", f"r\x1flock\x1f{name}", "c\x1fsession\x1f17")
    assert b"*4\r\n" + pack_four(*arguments) == pack(*arguments)


def test_a_request_without_time_is_not_sent_and_says_so(server: RedisServer) -> None:
    path = str(server.socket)
    connection = Connection(Address(path, path=path), monotonic() + PATIENCE_S)
    with pytest.raises(StoreUnavailableError, match="there was no time left to send the request"):
        connection.exchange(pack("SET", "unsent", "1"), monotonic() - 1)
    assert connection.exchange(pack("EXISTS", "unsent"), monotonic() + PATIENCE_S) == 0
    connection.close()


class Loop:
    """As much of an event loop as a connection uses, on a clock of its own."""

    def __init__(self) -> None:
        self.now_s = 1000.0
        self.soon: list[Callable[[], None]] = []
        self.asked: list[asyncio.Future[Any]] = []
        self._real = asyncio.new_event_loop()
        self.create_future = self._real.create_future
        self.call_at = self._real.call_at

    def time(self) -> float:
        return self.now_s

    def call_soon(self, callback: Callable[[], None]) -> None:
        self.soon.append(callback)

    def turn(self) -> bool:
        """Run what is to run soon; False if there is nothing, so that it would sleep."""
        due, self.soon = self.soon, []
        for callback in due:
            callback()
        return bool(due)

    def close(self) -> None:
        self._real.close()


class Transport(asyncio.Transport):
    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return default

    def is_closing(self) -> bool:
        return False

    def write(self, data: object) -> None:
        pass


@pytest.fixture
def loop() -> Iterator[Loop]:
    made = Loop()
    yield made
    made.close()


@pytest.fixture
def peer(loop: Loop) -> aio._Peer:
    made = aio._Peer(Address("redis"), loop)  # type: ignore[arg-type]
    made.connection_made(Transport())
    return made


def ask(peer: aio._Peer, loop: Loop) -> None:
    loop.asked.append(peer.ask(b"PING\r\n", loop.now_s + PATIENCE_S))


def make_near(peer: aio._Peer, loop: Loop) -> None:
    ask(peer, loop)
    assert not loop.soon, "nothing is known of the server yet"
    peer.data_received(b"+PONG\r\n")


def test_the_loop_stays_up_until_the_reply_is_there(peer: aio._Peer, loop: Loop) -> None:
    make_near(peer, loop)
    ask(peer, loop)
    assert loop.turn()
    assert loop.turn()
    peer.data_received(b"+PONG\r\n")
    assert loop.asked[-1].result() == "PONG"
    assert loop.turn()
    assert not loop.turn(), "nobody waits any more"


def test_the_loop_sleeps_for_a_reply_that_takes_long(peer: aio._Peer, loop: Loop) -> None:
    make_near(peer, loop)
    ask(peer, loop)
    assert loop.turn()
    loop.now_s += 1.01 * NEAR_S
    assert loop.turn()
    assert not loop.turn()
    peer.data_received(b"+PONG\r\n")
    ask(peer, loop)
    assert not loop.turn(), "it sleeps for the one after it, too"


def test_many_who_ask_keep_it_up_no_longer_than_one(peer: aio._Peer, loop: Loop) -> None:
    make_near(peer, loop)
    for _ in range(3):
        ask(peer, loop)
    assert len(loop.soon) == 1


def test_a_far_server_is_far_however_often_it_is_asked(peer: aio._Peer, loop: Loop) -> None:
    make_near(peer, loop)
    for _ in range(4):
        ask(peer, loop)
        loop.now_s += 0.9 * NEAR_S
    while loop.turn():
        loop.now_s += 0.2 * NEAR_S
    peer.data_received(b"+PONG\r\n")
    # Just after another had asked, but long after the one whose reply it was.
    ask(peer, loop)
    peer.data_received(b"+PONG\r\n")
    ask(peer, loop)
    assert not loop.turn()
