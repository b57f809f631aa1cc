"""How kazoo's connection thread connects, waits for sockets and calls us back.

kazoo lets a client bring its own handler (`kazoo.interfaces.IHandler`). Its default one opens and
closes an epoll instance four times per request, which takes half of the CPU time of a request, and
passes every callback through a queue to one of two worker threads. Our callbacks only set flags and
submit requests, neither of which blocks, so the connection thread can call them itself. It also
builds a TLS context of its own for each connection; ours is that of the other stores.

kazoo wakes that thread with one byte per request through a socket pair. The pair is full, and
blocks, after 278 requests that were not sent because no server is reached; and if a signal handler
raises between a request and its byte, every request from then on is sent only when the next one is.
With a `_Waker`, requests in kazoo's queue count, and not bytes.
"""

from __future__ import annotations

import contextlib
import logging
import math
import select
import socket
from collections.abc import Sequence
from typing import Any

from kazoo.handlers.threading import SequentialThreadingHandler

from lockfast.stores.waker import Waker
from lockfast.stores.zookeeper.address import Address

_log = logging.getLogger("lockfast.zookeeper")

_READABLE = select.POLLIN | select.POLLHUP | select.POLLERR | select.POLLNVAL
_WRITABLE = select.POLLOUT | select.POLLHUP | select.POLLERR | select.POLLNVAL


class QuietLog(logging.LoggerAdapter):  # type: ignore[type-arg]  # generic only in stubs
    """kazoo's logger, with its warnings at level DEBUG.

    kazoo warns about every single attempt to connect, as often as once a second for the length of
    an outage, which our own log reports once.
    """

    def __init__(self) -> None:
        super().__init__(logging.getLogger("kazoo.client"), {})

    def log(self, level: int, msg: object, *args: Any, **kwargs: Any) -> None:
        super().log(logging.DEBUG if level == logging.WARNING else level, msg, *args, **kwargs)


class DirectHandler(SequentialThreadingHandler):  # type: ignore[misc]  # kazoo has no types
    """Without worker threads: kazoo's connection thread calls callbacks itself."""

    name = "lockfast_direct_handler"
    client: Any = None
    """The client that uses this handler."""

    def __init__(self, address: Address) -> None:
        super().__init__()
        self._address = address
        self.failure: OSError | None = None
        """Why the last attempt to connect has failed."""

    def start(self) -> None:
        """Start no threads. `running` stays False: results then call their callbacks at once."""

    def stop(self) -> None:
        """Do nothing: there are no threads to stop."""

    def create_connection(
        self, address: tuple[str, int], hostname: str, timeout: float, **_: Any
    ) -> socket.socket:
        try:
            connection = self._address.connect(*address, hostname, timeout)
        except OSError as error:
            self.failure = error
            raise
        self.failure = None
        return connection

    def create_socket_pair(self) -> tuple[_Waker, _Waker]:
        waker = _Waker()
        return waker, waker

    def dispatch_callback(self, callback: Any) -> None:
        try:
            callback.func(*callback.args)
        except Exception:
            # An error must not end the connection thread.
            _log.exception("a callback for a ZooKeeper watch failed")

    def select(
        self,
        readable: Sequence[Any],
        writable: Sequence[Any],
        _exceptional: Sequence[Any] = (),
        timeout: float | None = None,
    ) -> tuple[list[Any], list[Any], list[Any]]:
        """Wait as `select.select` does, in one system call and without a limit on descriptors."""
        masks: dict[int, int] = {}
        for one in readable:
            masks[one.fileno()] = select.POLLIN
        for one in writable:
            masks[one.fileno()] = masks.get(one.fileno(), 0) | select.POLLOUT
        poll = select.poll()
        for descriptor, mask in masks.items():
            poll.register(descriptor, mask)
        client = self.client
        is_wanted = client is not None and bool(client._queue)
        woken = [one for one in readable if is_wanted and isinstance(one, _Waker)]
        timeout = 0 if woken else timeout
        events = dict(poll.poll(None if timeout is None else math.ceil(timeout * 1000)))
        return (
            [one for one in readable if one in woken or events.get(one.fileno(), 0) & _READABLE],
            [one for one in writable if events.get(one.fileno(), 0) & _WRITABLE],
            [],
        )


class _Waker(Waker):
    """Both ends of kazoo's socket pair: wakes the connection thread to look at its queue."""

    def send(self, data: bytes) -> None:
        # If the buffer is full, it is readable. kazoo must hear of a closed socket.
        with contextlib.suppress(BlockingIOError):
            self._writer.send(data)

    def recv(self, _: int) -> None:
        self.take()
