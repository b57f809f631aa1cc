"""The Redis store for asyncio: one connection per client, shared by all its tasks.

Requests are pipelined and replies arrive in the same order, so tasks need not wait for each other.
Keeper and wake listener have their own threads and connections, as in the blocking API. The store
runs on any event loop and uses only the loop's public methods.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable
from time import monotonic
from typing import Any, NamedTuple, cast

from lockfast.core.commands import Command, Reply
from lockfast.errors import OutcomeUnknownError, StoreUnavailableError
from lockfast.ports import Wire
from lockfast.stores.redis.address import Address
from lockfast.stores.redis.codec import BYTES_MAX
from lockfast.stores.redis.connection import (
    check_handshake,
    handshake,
    handshake_failed,
    unreachable,
)
from lockfast.stores.redis.errors import is_demoted, is_script_missing
from lockfast.stores.redis.protocol import ScriptProtocol
from lockfast.stores.redis.resp import PENDING, ProtocolError, ReplyReader
from lockfast.stores.redis.store import RedisStore
from lockfast.stores.stream import FRAME_BYTES_MAX, in_doubt, not_sent, tune, unreadable


class AsyncRedisStore(RedisStore):
    """A client's connections to one namespace, for the asyncio API."""

    def caller_wire(self) -> Wire:
        return self._owned(AsyncWire(self.protocol, self._wires.discard))


class _Request(NamedTuple):
    """A request in flight."""

    reply: asyncio.Future[Any]
    until_s: float
    bytes_max: int


class AsyncConnection(asyncio.Protocol):
    """One connection of one event loop; replies are matched to requests in order."""

    def __init__(self, address: Address, loop: asyncio.AbstractEventLoop) -> None:
        self.address = address
        self.loop = loop
        self.is_usable = True
        self._transport: asyncio.Transport | None = None
        self._reader = ReplyReader()
        self._requests: deque[_Request] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_s = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # Not checked by type: uvloop's transports are not derived from asyncio.Transport.
        self._transport = cast("asyncio.Transport", transport)
        opened = transport.get_extra_info("socket")
        if opened is not None and not self.address.path:
            tune(opened)

    def data_received(self, data: bytes) -> None:
        reader, requests = self._reader, self._requests
        reader.feed(data)
        try:
            while True:
                reader.bytes_max = requests[0].bytes_max if requests else FRAME_BYTES_MAX
                if (reply := reader.gets()) is PENDING:
                    break
                if not requests:
                    raise ProtocolError("a reply to no request")
                waiter = requests.popleft().reply
                if not waiter.done():  # otherwise the task was cancelled
                    waiter.set_result(reply)
        except ProtocolError as error:
            self._end(unreadable(self.address.label, error))
        if not self.is_usable:
            self._close_when_done()

    def connection_lost(self, error: Exception | None) -> None:
        broken = in_doubt(self.address.label, error)
        broken.__cause__ = error
        self._end(broken)

    def request(
        self, packed: bytes, until_s: float, bytes_max: int = FRAME_BYTES_MAX
    ) -> asyncio.Future[Any]:
        """Send a command; the future receives its reply, which may be a ReplyError.

        At `until_s` the future fails, and the connection accepts no more requests.
        """
        if self._transport is None or self._transport.is_closing():
            raise not_sent(self.address.label)
        self._transport.write(packed)
        reply = self.loop.create_future()
        self._requests.append(_Request(reply, until_s, bytes_max))
        # One timer for all requests: a timer for each would cost as much as the request.
        if self._timer is None or until_s < self._timer_s:
            self._set_timer(until_s)
        return reply

    def _set_timer(self, at_s: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_s = at_s
        self._timer = self.loop.call_at(at_s, self._check_deadlines)

    def _check_deadlines(self) -> None:
        """Fail the requests whose deadline has passed; set the timer for the next deadline."""
        self._timer = None
        now_s = self.loop.time()
        waiting = [request for request in self._requests if not request.reply.done()]
        for request in waiting:
            if request.until_s <= now_s:
                _fail(request.reply, in_doubt(self.address.label, TimeoutError()))
                self.retire()
        later = [request.until_s for request in waiting if not request.reply.done()]
        if later:
            self._set_timer(min(later))

    def retire(self) -> None:
        """Accept no more requests; close once those in flight are answered or have failed."""
        self.is_usable = False
        self.loop.call_soon(self._close_when_done)

    def _close_when_done(self) -> None:
        if all(request.reply.done() for request in self._requests):
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
        while self._requests:
            waiter = self._requests.popleft().reply
            if not waiter.done():
                _fail(waiter, error)


def _fail(waiter: asyncio.Future[Any], error: Exception) -> None:
    waiter.set_exception(error)
    # Its task may be gone: asyncio must not report that the exception was never retrieved.
    waiter.exception()


class AsyncWire:
    """Commands from the tasks of one event loop."""

    def __init__(
        self, protocol: ScriptProtocol, on_close: Callable[[AsyncWire], None] = lambda wire: None
    ) -> None:
        self._protocol = protocol
        self._on_close = on_close
        self._link = AsyncLink(protocol.address)

    async def send(self, command: Command, timeout_ms: int) -> Reply:
        loop = asyncio.get_running_loop()
        until_s = loop.time() + timeout_ms / 1000
        protocol = self._protocol
        connection = self._link.connection
        if connection is None or not connection.is_usable or connection.loop is not loop:
            connection = await self._link.connected(loop, until_s)
        packed = protocol.packed(command)
        bytes_max = BYTES_MAX[type(command)]
        found = await connection.request(packed, until_s, bytes_max)
        if isinstance(found, Exception) and is_script_missing(str(found)):
            # Certainly not executed. Load and call together: the script may be flushed again.
            loaded = connection.request(protocol.loading(command), until_s)
            found = await connection.request(packed, until_s, bytes_max)
            await loaded
        if isinstance(found, Exception) and is_demoted(str(found)):
            connection.retire()
        try:
            reply = protocol.reply(command, found)
        except OutcomeUnknownError:
            # The answer is malformed: requests and replies may be out of step.
            connection.abort()
            raise
        confirmation = protocol.confirmation
        if confirmation is None or not confirmation.needed(command, reply):
            return reply
        packed = confirmation.packed(until_s - loop.time())
        return confirmation.judged(command, reply, await connection.request(packed, until_s))

    def close(self) -> None:
        self._on_close(self)
        self._link.close()


class AsyncLink:
    """The connection of one event loop to one server, made on demand."""

    def __init__(self, address: Address, *, probed: bool = True) -> None:
        self._address = address
        self._probed = probed
        self.connection: AsyncConnection | None = None
        self._connecting: asyncio.Lock | None = None

    async def connected(self, loop: asyncio.AbstractEventLoop, until_s: float) -> AsyncConnection:
        """Return the connection; the first task that needs it connects for all."""
        former = self.connection
        if self._connecting is None or (former is not None and former.loop is not loop):
            self._connecting = asyncio.Lock()
            self.close()
        label = self._address.label
        try:
            async with asyncio.timeout_at(until_s), self._connecting:
                if self.connection is None or not self.connection.is_usable:
                    self.connection = await self._connect(loop, until_s)
                return self.connection
        except TimeoutError as error:
            raise StoreUnavailableError(label, "could not be reached in time") from error

    async def _connect(self, loop: asyncio.AbstractEventLoop, until_s: float) -> AsyncConnection:
        address = self._address
        if address.sentinels:
            from lockfast.stores.redis.sentinel import primary_of

            # On a worker thread: sentinels are asked once per connection, in a few short exchanges.
            give_up_s = monotonic() + until_s - loop.time()
            address = await loop.run_in_executor(None, primary_of, address, give_up_s)
        connection = AsyncConnection(address, loop)
        try:
            if address.path:
                await loop.create_unix_connection(lambda: connection, address.path)
            else:
                await loop.create_connection(
                    lambda: connection, address.host, address.port, ssl=address.tls
                )
        except OSError as error:
            if isinstance(error, TimeoutError):
                raise
            raise unreachable(address, error) from error
        try:
            steps = handshake(address, probed=self._probed)
            replies = await asyncio.gather(
                *[connection.request(packed, until_s) for packed in steps.values()]
            )
            check_handshake(address, dict(zip(steps, replies, strict=True)))
        except BaseException as error:
            connection.abort()
            why = handshake_failed(address, error)
            if why is None:
                raise
            raise why from error
        return connection

    def close(self) -> None:
        connection, self.connection = self.connection, None
        if connection is not None:
            # Its loop may be closed, and its transport with it.
            with contextlib.suppress(RuntimeError):
                connection.loop.call_soon_threadsafe(connection.abort)
