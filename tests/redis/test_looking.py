"""Under asyncio, a task that asks alone looks for its reply before it leaves that to the loop.

The server's end is in the hands of the test. What it sends before it is asked is there at
once, as long as no turn of the loop comes between; what it does not send never is.
"""

from __future__ import annotations

import asyncio
import os
import socket
import threading
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any, Final, NamedTuple

import pytest

from lockfast.errors import OutcomeUnknownError, StoreUnavailableError
from lockfast.stores.redis import aio
from lockfast.stores.redis.address import Address
from lockfast.stores.stream import NEAR_S

PATIENCE_S: Final = 30.0
PING: Final = b"PING\r\n"
PONG: Final = b"+PONG\r\n"


class Answer(NamedTuple):
    reply: Any
    others_ran: bool
    """Whether the loop turned before the reply was there."""


class Near(NamedTuple):
    """A connection whose server was asked by this very task, and answered soon."""

    peer: aio._Peer
    server: socket.socket

    async def ask(self, packed: bytes = PING) -> Answer:
        loop = asyncio.get_running_loop()
        turns: list[str] = []
        loop.call_soon(turns.append, "others")
        reply = await self.peer.exchange(packed, loop.time() + PATIENCE_S)
        return Answer(reply, bool(turns))


@asynccontextmanager
async def connected() -> AsyncIterator[Near]:
    ours, server = socket.socketpair()
    with server:
        loop = asyncio.get_running_loop()
        peer = aio._Peer(Address("redis", path="redis"), loop)
        await loop.create_unix_connection(lambda: peer, sock=ours)
        near = Near(peer, server)
        server.send(PONG)
        assert await near.ask() == ("PONG", True), "nothing is known of the server yet"
        assert server.recv(100) == PING
        peer._is_near = True
        try:
            yield near
        finally:
            peer.abort()
            await asyncio.sleep(0)


def run(story: Callable[[Near], Coroutine[Any, Any, None]]) -> None:
    async def connect_and_run() -> None:
        async with asyncio.timeout(PATIENCE_S), connected() as near:
            await story(near)

    asyncio.run(connect_and_run())


@pytest.fixture(autouse=True)
def never_give_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(aio, "TURN_S", 1e12)


def test_a_reply_that_is_there_needs_no_turn() -> None:
    async def story(near: Near) -> None:
        for _ in range(3):
            near.server.send(PONG)
            assert await near.ask() == ("PONG", False)
            assert near.server.recv(100) == PING

    run(story)


def test_a_reply_in_two_parts_is_one() -> None:
    async def story(near: Near) -> None:
        near.server.send(b"$70000\r\n" + b"x" * 70000 + b"\r\n")
        assert await near.ask() == ("x" * 70000, False)

    run(story)


def test_others_run_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(aio, "TURN_S", -1.0)

    async def story(near: Near) -> None:
        near.server.send(PONG)
        assert await near.ask() == ("PONG", True)

    run(story)


def test_who_asks_after_another_task_does_not_look() -> None:
    async def story(near: Near) -> None:
        near.server.send(PONG)
        assert (await asyncio.create_task(near.ask())).others_ran
        near.server.send(PONG)
        assert (await near.ask()).others_ran, "neither of the two is alone"
        near.server.send(PONG)
        near.peer._is_near = True
        assert not (await near.ask()).others_ran

    run(story)


def test_requests_side_by_side_are_left_to_the_loop() -> None:
    async def story(near: Near) -> None:
        under_way = near.peer.ask(PING, asyncio.get_running_loop().time() + PATIENCE_S)
        near.server.send(b"+first\r\n+second\r\n")
        assert await near.ask() == ("second", True)
        assert await under_way == "first"

    run(story)


def test_a_reply_that_takes_long_is_waited_for_and_so_is_the_next() -> None:
    async def story(near: Near) -> None:
        loop = asyncio.get_running_loop()
        asked_s = loop.time()
        loop.call_soon(near.server.send, PONG)
        assert await near.ask() == ("PONG", True)
        assert loop.time() - asked_s >= NEAR_S, "it was looked for"
        near.server.send(PONG)
        assert (await near.ask()).others_ran

    run(story)


def test_a_far_server_is_far_however_often_it_is_asked() -> None:
    async def story(near: Near) -> None:
        loop = asyncio.get_running_loop()
        first = near.peer.ask(PING, loop.time() + PATIENCE_S)
        await asyncio.sleep(2 * NEAR_S)
        second = near.peer.ask(PING, loop.time() + PATIENCE_S)
        near.server.send(PONG)
        assert await first == "PONG"
        assert not near.peer._is_near, "just after another had asked, but long after its own"
        near.server.send(PONG)
        assert await second == "PONG"

    run(story)


def test_a_request_that_does_not_go_out_at_one_go() -> None:
    request = os.urandom(1 << 22)
    arrived = bytearray()

    def serve(server: socket.socket) -> None:
        server.setblocking(True)
        while len(arrived) < len(request):
            arrived.extend(server.recv(1 << 20))
        server.send(PONG)

    async def story(near: Near) -> None:
        thread = threading.Thread(target=serve, args=(near.server,))
        asyncio.get_running_loop().call_soon(thread.start)
        assert await near.ask(request) == ("PONG", True)
        thread.join(PATIENCE_S)

    run(story)
    assert arrived == request


def test_what_cannot_be_sent_is_surely_not_done() -> None:
    async def story(near: Near) -> None:
        near.server.close()
        with pytest.raises(StoreUnavailableError, match="before the request was sent"):
            await near.ask()
        assert not near.peer.is_usable

    run(story)


def test_a_connection_that_ends_before_the_answer_leaves_a_doubt() -> None:
    async def story(near: Near) -> None:
        near.server.shutdown(socket.SHUT_WR)
        with pytest.raises(OutcomeUnknownError, match="before the answer came"):
            await near.ask()
        assert near.server.recv(100) == PING
        assert not near.peer.is_usable

    run(story)


@pytest.mark.parametrize("said", [b"what?\r\n", PONG + PONG, PONG + b"+"])
def test_an_answer_that_makes_no_sense_leaves_a_doubt(said: bytes) -> None:
    async def story(near: Near) -> None:
        near.server.send(said)
        with pytest.raises(OutcomeUnknownError, match="does not speak RESP"):
            await near.ask()
        assert not near.peer.is_usable

    run(story)


def test_a_request_that_was_given_up_is_never_answered_by_a_late_reply() -> None:
    async def story(near: Near) -> None:
        with pytest.raises(OutcomeUnknownError, match="did not answer in time"):
            await near.peer.exchange(PING, asyncio.get_running_loop().time())
        assert not near.peer.is_usable, "whoever asks next gets another connection"

    run(story)


def test_its_descriptor_goes_with_the_connection() -> None:
    async def story(near: Near) -> None:
        looked_at = near.peer._stream
        assert looked_at is not None
        near.peer.abort()
        assert looked_at.fileno() == -1
        assert near.peer._stream is None

    run(story)
