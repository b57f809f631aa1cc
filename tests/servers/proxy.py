"""A TCP proxy in front of a real server, which breaks connections on request.

Every connection goes through one thread with an event loop. Each direction is shaped separately:

  delay   every piece arrives later, in order
  held    nothing passes; when the shape changes, what was held arrives after all. This is what
          a partition in one direction does to TCP, which retransmits until it succeeds.
  lost    pieces vanish, and nothing more passes on the connections that lost one: TCP never
          delivers what follows a gap. This is a firewall that has forgotten the connection.

In addition, all connections can be reset, new ones refused, and one `Cut` made at any byte.
"""

from __future__ import annotations

import asyncio
import socket
import struct
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Literal, NamedTuple, Self, cast

Direction = Literal["request", "reply"]
DIRECTIONS: Final[tuple[Direction, ...]] = ("request", "reply")
_RESET: Final = struct.pack("ii", 1, 0)
"""For SO_LINGER: closing sends a reset, not a FIN."""


class Cut(NamedTuple):
    """Reset one connection after this many bytes in one direction, counted over all connections."""

    direction: Direction
    after: int


@dataclass(frozen=True, slots=True)
class Shape:
    """What happens to the bytes in one direction."""

    delay_s: float = 0.0
    held: bool = False
    lost: bool = False


_FREE: Final = Shape()


class Proxy:
    """Listens on a TCP port of this machine and forwards everything to `upstream`.

    Every method may be called from any thread, and has taken effect when it returns.
    """

    def __init__(self, upstream: Path | tuple[str, int]) -> None:
        self._upstream = upstream
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._shapes = dict.fromkeys(DIRECTIONS, _FREE)
        self._passed = dict.fromkeys(DIRECTIONS, 0)
        self._cut: Cut | None = None
        self._then: Callable[[], None] | None = None
        self._refusing = False
        self._ends: set[_End] = set()
        self._connecting: set[asyncio.Task[None]] = set()

    @property
    def address(self) -> str:
        """Host and port, as in a URL."""
        return f"127.0.0.1:{self.port}"

    # ── what tests tell it ───────────────────────────────────────────────────────────

    def arm(self, cut: Cut | None, then: Callable[[], None] | None = None) -> None:
        """Restart the count, and cut once; None: only count.

        `then` runs in the proxy's thread after the bytes before the cut have been sent and before
        the connection is reset: a place to kill a process.
        """

        def set_up() -> None:
            self._cut, self._then = cut, then
            self._passed = dict.fromkeys(DIRECTIONS, 0)

        self._do(set_up)

    def passed(self, direction: Direction) -> int:
        """Return how many bytes were forwarded since the last `arm`."""
        return self._passed[direction]

    def shape(self, direction: Direction, shape: Shape) -> None:
        """Set what happens in one direction from now on, on every connection."""

        def change() -> None:
            self._shapes[direction] = shape
            for end in list(self._ends):
                if end.direction == direction:
                    end.flow()

        self._do(change)

    def reset(self) -> None:
        """Reset every open connection."""
        self._do(self._reset_all)

    def refuse(self, refusing: bool = True) -> None:
        """Reset new connections as soon as they are accepted."""
        self._refusing = refusing

    def heal(self) -> None:
        """Forward everything again. Connections that have lost something stay silent."""
        self.refuse(False)
        self.arm(None)
        for direction in DIRECTIONS:
            self.shape(direction, _FREE)

    # ── its life ─────────────────────────────────────────────────────────────────────

    def __enter__(self) -> Self:
        self._thread.start()
        serving = self._loop.create_server(lambda: _Client(self), sock=self._listener)
        self._server = asyncio.run_coroutine_threadsafe(serving, self._loop).result()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        asyncio.run_coroutine_threadsafe(self._close(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _close(self) -> None:
        self._server.close()
        for task in self._connecting:
            task.cancel()
        while self._ends or self._connecting:
            self._reset_all()
            await asyncio.sleep(0)
        await asyncio.sleep(0)

    def _reset_all(self) -> None:
        for end in list(self._ends):
            end.reset()

    def _do(self, change: Callable[[], object]) -> None:
        async def job() -> None:
            change()

        asyncio.run_coroutine_threadsafe(job(), self._loop).result()

    # ── what its connections ask, in its thread ──────────────────────────────────────

    def accept(self, client: _Client) -> None:
        self._ends.add(client)
        if self._refusing:
            client.reset()
            return
        task = self._loop.create_task(self._connect(client))
        self._connecting.add(task)
        task.add_done_callback(self._connecting.discard)

    async def _connect(self, client: _Client) -> None:
        try:
            if isinstance(self._upstream, Path):
                _, server = await self._loop.create_unix_connection(
                    lambda: _End(self, "reply"), str(self._upstream)
                )
            else:
                _, server = await self._loop.create_connection(
                    lambda: _End(self, "reply"), *self._upstream
                )
        except OSError:
            client.reset()
            return
        self._ends.add(server)
        client.meet(server)

    def forget(self, end: _End) -> None:
        self._ends.discard(end)

    def shape_of(self, direction: Direction) -> Shape:
        return self._shapes[direction]

    def allow(self, direction: Direction, count: int) -> tuple[int, Callable[[], None] | None]:
        """Return how many of these bytes may pass, and what to do if the cut comes after them."""
        cut = self._cut
        left = count + 1
        if cut is not None and cut.direction == direction:
            left = cut.after - self._passed[direction]
        if left > count:
            self._passed[direction] += count
            return count, None
        self._passed[direction] += left
        then, self._cut, self._then = self._then, None, None
        return left, then or (lambda: None)


class _End(asyncio.Protocol):
    """One side of a connection. What it receives goes to the other side."""

    def __init__(self, proxy: Proxy, direction: Direction) -> None:
        self.direction = direction
        self._proxy = proxy
        self._transport: asyncio.Transport | None = None
        self._peer: _End | None = None
        self._waiting: deque[tuple[float, bytes]] = deque()
        """Pieces with the instants at which they are due; an empty one ends the stream."""
        self._timer: asyncio.TimerHandle | None = None
        self._silent = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        made: Any = transport.get_extra_info("socket")
        if made.family == socket.AF_INET:
            made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def meet(self, peer: _End) -> None:
        """Connect the two sides, and forward what has arrived so far."""
        self._peer, peer._peer = peer, self
        if self._transport is None or self._transport.is_closing():
            peer.reset()
            return
        self.flow()
        peer.flow()

    def data_received(self, data: bytes) -> None:
        shape = self._proxy.shape_of(self.direction)
        if shape.lost:
            self._silent = True
        if not self._silent:
            due = asyncio.get_running_loop().time() + shape.delay_s
            self._waiting.append((due, data))
            self.flow()

    def eof_received(self) -> bool:
        self._waiting.append((0.0, b""))
        self.flow()
        return True

    def connection_lost(self, error: Exception | None) -> None:
        self._proxy.forget(self)
        if self._timer is not None:
            self._timer.cancel()
        if self._peer is not None:
            self._peer.reset() if error is not None else self._peer.close()

    def flow(self) -> None:
        """Send what is due to the other side."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._peer is None:
            return
        loop = asyncio.get_running_loop()
        while self._waiting and not self._proxy.shape_of(self.direction).held and not self._silent:
            due, data = self._waiting[0]
            if due > loop.time():
                self._timer = loop.call_at(due, self.flow)
                return
            self._waiting.popleft()
            if not data:
                self._peer.close()
                return
            allowed, cut = self._proxy.allow(self.direction, len(data))
            self._peer.send(data[:allowed])
            if cut is not None:
                cut()
                self.reset()
                return

    def send(self, data: bytes) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    def reset(self) -> None:
        """Reset both sides; what is in flight is lost."""
        for end in (self, self._peer):
            transport = end._transport if end is not None else None
            if transport is not None and not transport.is_closing():
                made: Any = transport.get_extra_info("socket")
                made.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
                transport.abort()


class _Client(_End):
    """The side that faces the client; it opens the other side."""

    def __init__(self, proxy: Proxy) -> None:
        super().__init__(proxy, "request")

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._proxy.accept(self)
