"""The Redis store for asyncio: one connection per client, shared by all its tasks.

Requests go out as they come and replies arrive in the same order, so tasks need not wait
for each other. Keeper and listener have threads and connections of their own, as in every face.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple, cast

import hiredis

from lockfast.core.commands import Command, Reply
from lockfast.errors import StoreError, StoreUnavailableError
from lockfast.ports import Wire
from lockfast.stores.redis import RedisStore
from lockfast.stores.redis.address import Address
from lockfast.stores.redis.codec import has_more
from lockfast.stores.redis.connection import (
    PENDING,
    check_greeting,
    greeting,
    new_reader,
    not_let_in,
    tune,
    unreachable,
)
from lockfast.stores.redis.errors import is_script_missing
from lockfast.stores.redis.wire import Shard
from lockfast.stores.stream import in_doubt, not_sent, unreadable


class AsyncRedisStore(RedisStore):
    """As RedisStore, with callers that give way while a request is under way."""

    def caller_wire(self) -> Wire:
        return self._noted(AsyncWire(self.shard, self._wires.discard))


class _Asked(NamedTuple):
    """A request that is under way."""

    reply: asyncio.Future[Any]
    until_s: float


class _Peer(asyncio.Protocol):
    """The server's end: replies are handed to those who asked, in order."""

    def __init__(self, address: Address, loop: asyncio.AbstractEventLoop) -> None:
        self.address = address
        self.loop = loop
        self.is_usable = True
        self._transport: asyncio.Transport | None = None
        self._reader = new_reader()
        self._asked: deque[_Asked] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_s = 0.0
        """When the timer fires; uvloop's handles do not all tell."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # Not checked by type: uvloop's transports are not derived from asyncio.Transport.
        self._transport = cast("asyncio.Transport", transport)
        opened = transport.get_extra_info("socket")
        if opened is not None and not self.address.path:
            tune(opened)

    def data_received(self, data: bytes) -> None:
        self._reader.feed(data)
        try:
            while (reply := self._reader.gets()) is not PENDING:
                asked = self._asked.popleft()
                if not asked.reply.done():  # else whoever asked has gone meanwhile
                    asked.reply.set_result(reply)
        except (hiredis.ProtocolError, IndexError) as error:
            self._end(unreadable(self.address.label, repr(error)))
        if not self.is_usable:
            self._close_when_done()

    def connection_lost(self, error: Exception | None) -> None:
        in_the_dark = in_doubt(self.address.label, error)
        in_the_dark.__cause__ = error
        self._end(in_the_dark)

    def ask(self, packed: bytes, until_s: float) -> asyncio.Future[Any]:
        """Send a command; the future has its reply, which may be an exception.

        Once `until_s` has passed it is given up, and nobody else is sent this way.
        """
        if self._transport is None or self._transport.is_closing():
            raise not_sent(self.address.label)
        self._transport.write(packed)
        reply = self.loop.create_future()
        self._asked.append(_Asked(reply, until_s))
        # One timer for all: to make one for each request would cost as much as the request.
        if self._timer is None or until_s < self._timer_s:
            self._set_timer(until_s)
        return reply

    def _set_timer(self, at_s: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_s = at_s
        self._timer = self.loop.call_at(at_s, self._look_at_clock)

    def _look_at_clock(self) -> None:
        """Give up what is due; the others are looked at when they would be."""
        self._timer = None
        now_s = self.loop.time()
        waiting = [asked for asked in self._asked if not asked.reply.done()]
        for asked in waiting:
            if asked.until_s <= now_s:
                _give_up(asked.reply, in_doubt(self.address.label, TimeoutError()))
                self.retire()
        later = [asked.until_s for asked in waiting if not asked.reply.done()]
        if later:
            self._set_timer(min(later))

    def retire(self) -> None:
        """Take no more requests, and close once those under way are answered or given up."""
        self.is_usable = False
        self.loop.call_soon(self._close_when_done)

    def _close_when_done(self) -> None:
        if all(asked.reply.done() for asked in self._asked):
            self.abort()

    def abort(self) -> None:
        self.is_usable = False
        if self._transport is not None:
            self._transport.abort()

    def _end(self, error: Exception) -> None:
        self.abort()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        while self._asked:
            asked = self._asked.popleft()
            if not asked.reply.done():
                _give_up(asked.reply, error)


def _give_up(asked: asyncio.Future[Any], error: Exception) -> None:
    asked.set_exception(error)
    # Whoever asked may be gone, or never have got to wait: asyncio must not complain of that.
    asked.exception()


class AsyncWire:
    """Commands of the tasks of one event loop."""

    def __init__(
        self, shard: Shard, on_close: Callable[[AsyncWire], None] = lambda wire: None
    ) -> None:
        self._shard = shard
        self._on_close = on_close
        self._peer: _Peer | None = None
        self._connecting: asyncio.Lock | None = None

    async def send(self, command: Command, timeout_ms: int) -> Reply:
        loop = asyncio.get_running_loop()
        until_s = loop.time() + timeout_ms / 1000
        found = await self._exchange(command, loop, until_s)
        if has_more(found):
            # As BlockingWire._go_on.
            with contextlib.suppress(StoreError):
                while loop.time() < until_s and has_more(
                    await self._exchange(command, loop, until_s)
                ):
                    pass
        return self._shard.reply(command, found)

    async def _exchange(
        self, command: Command, loop: asyncio.AbstractEventLoop, until_s: float
    ) -> Any:
        packed = self._shard.packed(command)
        peer = self._peer
        if peer is None or not peer.is_usable or peer.loop is not loop:
            peer = await self._connected(loop, until_s)
        found = await peer.ask(packed, until_s)
        if isinstance(found, Exception) and is_script_missing(str(found)):
            loaded = peer.ask(self._shard.loading(command), until_s)
            found = await peer.ask(packed, until_s)
            await loaded
        return found

    async def _connected(self, loop: asyncio.AbstractEventLoop, until_s: float) -> _Peer:
        """The connection, made by the first of those who need it now."""
        former = self._peer
        if self._connecting is None or (former is not None and former.loop is not loop):
            self._connecting = asyncio.Lock()
            self._drop()
        label = self._shard.address.label
        try:
            async with asyncio.timeout_at(until_s), self._connecting:
                if self._peer is None or not self._peer.is_usable:
                    self._peer = await self._connect(loop, until_s)
                return self._peer
        except TimeoutError as error:
            raise StoreUnavailableError(label, "could not be reached in time") from error

    async def _connect(self, loop: asyncio.AbstractEventLoop, until_s: float) -> _Peer:
        shard = self._shard
        address = shard.address
        peer = _Peer(address, loop)
        try:
            if address.path:
                await loop.create_unix_connection(lambda: peer, address.path)
            else:
                await loop.create_connection(
                    lambda: peer, address.host, address.port, ssl=address.tls
                )
        except OSError as error:
            if isinstance(error, TimeoutError):
                raise
            raise unreachable(address, error) from error
        first = not shard.is_known
        try:
            commands = greeting(address, first=first)
            replies = await asyncio.gather(*[peer.ask(packed, until_s) for packed in commands])
            check_greeting(address, replies, first=first)
        except BaseException as error:
            peer.abort()
            why = not_let_in(address, error)
            if why is None:
                raise
            raise why from error
        shard.is_known = True
        return peer

    def _drop(self) -> None:
        peer, self._peer = self._peer, None
        if peer is not None:
            # Of another loop, which may be closed: then there is nothing left to close.
            with contextlib.suppress(RuntimeError):
                peer.loop.call_soon_threadsafe(peer.abort)

    def close(self) -> None:
        self._on_close(self)
        self._drop()
