"""The connection of the asyncio API, with the test as its server."""

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

pytestmark = pytest.mark.usefixtures("each_loop")
PATIENCE_S: Final = 30.0
PING: Final = b"PING\r\n"
PONG: Final = b"+PONG\r\n"


class Ends(NamedTuple):
    """Both ends of one connection."""

    peer: aio.AsyncConnection
    server: socket.socket

    async def ask(self, packed: bytes = PING, within_s: float = PATIENCE_S) -> Any:
        return await self.peer.request(packed, asyncio.get_running_loop().time() + within_s)


@asynccontextmanager
async def connected() -> AsyncIterator[Ends]:
    ours, server = socket.socketpair()
    with server:
        loop = asyncio.get_running_loop()
        peer = aio.AsyncConnection(Address("redis", path="redis"), loop)
        await loop.create_unix_connection(lambda: peer, sock=ours)
        try:
            yield Ends(peer, server)
        finally:
            peer.abort()
            await asyncio.sleep(0)


Story = Callable[[Ends], Coroutine[Any, Any, None]]


def run(story: Story) -> None:
    async def connect() -> None:
        async with asyncio.timeout(PATIENCE_S), connected() as ends:
            await story(ends)

    asyncio.run(connect())


def test_replies_go_to_those_who_asked_in_order() -> None:
    async def story(ends: Ends) -> None:
        until_s = asyncio.get_running_loop().time() + PATIENCE_S
        first = ends.peer.request(PING, until_s)
        second = ends.peer.request(PING, until_s)
        ends.server.send(b"+first\r\n+sec")
        assert await first == "first"
        ends.server.send(b"ond\r\n")
        assert await second == "second"

    run(story)


def test_other_tasks_run_while_a_reply_is_awaited() -> None:
    """A task that acquires locks in a loop must not keep the event loop from other tasks."""

    async def story(ends: Ends) -> None:
        loop = asyncio.get_running_loop()
        for _ in range(3):
            ends.server.send(PONG)  # the reply is there before it is awaited
            turns: list[str] = []
            loop.call_soon(turns.append, "another")
            assert await ends.ask() == "PONG"
            assert turns

    run(story)


def test_a_large_request_goes_out_whole() -> None:
    request = os.urandom(1 << 22)
    arrived = bytearray()

    def serve(server: socket.socket) -> None:
        server.setblocking(True)
        while len(arrived) < len(request):
            arrived.extend(server.recv(1 << 20))
        server.send(PONG)

    async def story(ends: Ends) -> None:
        thread = threading.Thread(target=serve, args=(ends.server,))
        thread.start()
        assert await ends.ask(request) == "PONG"
        thread.join(PATIENCE_S)
        assert arrived == request
        arrived.clear()

    run(story)


def test_a_closed_connection_takes_no_request() -> None:
    async def story(ends: Ends) -> None:
        ends.peer.abort()
        with pytest.raises(StoreUnavailableError, match="before the request was sent"):
            await ends.ask()

    run(story)


def test_a_connection_that_ends_before_the_answer_leaves_a_doubt() -> None:
    async def story(ends: Ends) -> None:
        ends.server.shutdown(socket.SHUT_WR)
        with pytest.raises(OutcomeUnknownError, match="before the answer came"):
            await ends.ask()
        assert ends.server.recv(100) == PING
        assert not ends.peer.is_usable

    run(story)


@pytest.mark.parametrize("said", [b"what?\r\n", PONG + PONG])
def test_an_answer_that_makes_no_sense_ends_the_connection(said: bytes) -> None:
    async def story(ends: Ends) -> None:
        asked = ends.peer.request(PING, asyncio.get_running_loop().time() + PATIENCE_S)
        ends.server.send(said)
        try:
            assert await asked == "PONG"
        except OutcomeUnknownError as error:
            assert "cannot be used" in str(error)
        while ends.peer.is_usable:
            await asyncio.sleep(0)

    run(story)


def test_a_request_that_was_given_up_is_never_answered_by_a_late_reply() -> None:
    async def story(ends: Ends) -> None:
        with pytest.raises(OutcomeUnknownError, match="did not answer in time"):
            await ends.ask(within_s=0.0)
        assert not ends.peer.is_usable, "whoever asks next gets another connection"

    run(story)


def test_bytes_that_trickle_in_do_not_move_the_deadline() -> None:
    async def story(ends: Ends) -> None:
        async def trickle() -> None:
            ends.server.send(b"+")
            while True:
                ends.server.send(b"x")
                await asyncio.sleep(0)

        trickling = asyncio.create_task(trickle())
        try:
            with pytest.raises(OutcomeUnknownError):
                await ends.ask(within_s=0.05)
        finally:
            trickling.cancel()

    run(story)
