"""One subscription for all sessions of a client, on a separate thread.

A message published on one node of a cluster reaches the subscribers of every node, so any node will
do. A subscription to a node that hangs would receive nothing and never break, so the thread pings
the node and switches to another if it does not answer.

Messages published before a session's subscription was established, or while the connection was
broken, are lost. After each (re)connection the listeners report WAKE_MISSED, and the keepers check
all claims.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Sequence
from time import monotonic
from typing import Any, Final

from lockfast.core.commands import Blocker, Wake
from lockfast.errors import StoreError
from lockfast.ports import WAKE_MISSED, Deliver
from lockfast.runtimes.platform import POLLIN, poll
from lockfast.runtimes.threads import ThreadSignal
from lockfast.stores.reconnecting import CONNECT_S, RETRY_FIRST_S, RETRY_MAX_S
from lockfast.stores.redis.address import Address
from lockfast.stores.redis.cluster.topology import Cluster
from lockfast.stores.redis.connection import Connection
from lockfast.stores.redis.resp import PENDING, ProtocolError, pack
from lockfast.stores.redis.scripts import channel_of
from lockfast.stores.redis.session_wakes import SessionWakes
from lockfast.stores.waker import Waker

PING_EVERY_S: Final = 1.0
SILENT_S: Final = 3.0
"""Switch to another node if this one has sent nothing for this long, not even a ping reply."""
READS_MAX: Final = 64
"""How many consecutive reads may fill the buffer; none of our messages is that large."""


class ClusterWakeListener:
    """The wakes of one session. Only its keeper listens; the subscription's thread delivers."""

    process = ""
    """Empty: a server cannot detect that a client's process has died."""

    def __init__(
        self, subscription: Subscription, address: Address, session: str, deliver: Deliver
    ) -> None:
        self.channel = channel_of(address.namespace, session)
        self._wakes = SessionWakes(session, deliver, confirmed=address.wait > 0)
        self.inbox = self._wakes.inbox
        self._session = session
        self._heard: deque[Wake] = deque()
        self._signal = ThreadSignal()
        self._subscription = subscription
        subscription.add(self)

    async def listen(self, timeout_ms: int | None) -> Sequence[Wake]:
        self._signal.wait_blocking(timeout_ms)
        # Replace the signal before reading the wakes: a wake added in between sets the new signal.
        self._signal = ThreadSignal()
        return [self._heard.popleft() for _ in range(len(self._heard))]

    def hear(self, messages: Sequence[Any]) -> None:
        """Add messages to this session; called by the subscription's thread."""
        self._add(self._wakes.hear_all(messages))

    def missed(self) -> None:
        """Report that messages may have been lost; called by the subscription's thread."""
        self._add([Wake(self.inbox, self._session, 0, WAKE_MISSED)])

    def _add(self, wakes: list[Wake]) -> None:
        if wakes:
            self._heard.extend(wakes)
            self._signal.set()

    def interrupt(self) -> None:
        self._signal.set()

    def watch_over(self, n: int, blockers: Sequence[Blocker]) -> None:
        """Do nothing: processes on other machines cannot be watched."""

    def dead(self, blockers: Sequence[Blocker]) -> Sequence[str]:
        return ()

    def close(self) -> None:
        self._subscription.remove(self)


class Subscription:
    """The thread that receives the wakes of all listeners."""

    def __init__(self, cluster: Cluster) -> None:
        self.process = os.getpid()
        self._cluster = cluster
        self._listeners: dict[str, ClusterWakeListener] = {}
        self._waker = Waker()
        self._mutex = threading.Lock()
        self._thread: threading.Thread | None = None
        self._closed = False

    def add(self, listener: ClusterWakeListener) -> None:
        with self._mutex:
            self._listeners[listener.channel] = listener
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._run, name="lockfast-wakes", daemon=True
                )
                self._thread.start()
        self._waker.interrupt()

    def remove(self, listener: ClusterWakeListener) -> None:
        if self.process == os.getpid():
            with self._mutex:
                self._listeners.pop(listener.channel, None)
            self._waker.interrupt()

    def close(self) -> None:
        """Stop the thread, without waiting for it."""
        if self.process == os.getpid():
            with self._mutex:
                self._closed = True
                started = self._thread is not None
            self._waker.interrupt()
            if not started:
                self._waker.close()

    # ── the thread ───────────────────────────────────────────────────────────────────

    def _run(self) -> None:
        retry_s = RETRY_FIRST_S
        turn = 0
        try:
            while not self._closed:
                nodes = self._cluster.nodes()
                address = self._cluster.address_of(nodes[turn % len(nodes)])
                turn += 1
                try:
                    connection = Connection(address, monotonic() + CONNECT_S, checked=False)
                except StoreError:
                    # Not reported here: the keepers' own requests fail too, and are retried.
                    self._wait(retry_s)
                    retry_s = min(2 * retry_s, RETRY_MAX_S)
                    continue
                retry_s = RETRY_FIRST_S
                try:
                    _Hearing(connection, self._listeners, self._waker).serve(self)
                except (OSError, ProtocolError, StoreError):
                    self._wait(retry_s)
                finally:
                    connection.close()
        finally:
            self._waker.close()

    @property
    def is_closed(self) -> bool:
        return self._closed

    def channels(self) -> set[str]:
        with self._mutex:
            return set(self._listeners)

    def _wait(self, seconds: float) -> None:
        """Pause before the next attempt; `close` ends the pause."""
        until_s = monotonic() + seconds
        pause = poll()
        pause.register(self._waker.fileno(), POLLIN)
        while not self._closed and (left_s := until_s - monotonic()) > 0:
            if pause.poll(left_s * 1000):
                self._waker.take()


class _Hearing:
    """One connection of the subscription, from its first SUBSCRIBE until it breaks."""

    def __init__(
        self, connection: Connection, listeners: dict[str, ClusterWakeListener], waker: Waker
    ) -> None:
        self._connection = connection
        self._listeners = listeners
        self._waker = waker
        self._subscribed: set[str] = set()
        self._heard_s = self._pinged_s = monotonic()
        self._poll = poll()
        self._poll.register(waker.fileno(), POLLIN)
        self._poll.register(connection.stream.fileno(), POLLIN)

    def serve(self, subscription: Subscription) -> None:
        """Receive until the subscription is closed; raises if the node does not answer."""
        while not subscription.is_closed:
            self._follow(subscription.channels())
            for fd, _ in self._poll.poll(PING_EVERY_S * 1000):
                if fd == self._waker.fileno():
                    self._waker.take()
                else:
                    self._read()
            self._ping()

    def _follow(self, wanted: set[str]) -> None:
        """Subscribe to the channels of new sessions, and unsubscribe from those of closed ones."""
        if new := wanted - self._subscribed:
            self._send(pack("SUBSCRIBE", *sorted(new)))
        if gone := self._subscribed - wanted:
            self._send(pack("UNSUBSCRIBE", *sorted(gone)))
        self._subscribed = wanted

    def _ping(self) -> None:
        now_s = monotonic()
        if now_s - self._heard_s > SILENT_S:
            raise TimeoutError("the node does not answer")
        if now_s - self._pinged_s >= PING_EVERY_S:
            self._pinged_s = now_s
            self._send(pack("PING"))

    def _send(self, packed: bytes) -> None:
        self._connection.stream.send(packed, monotonic() + CONNECT_S)

    def _read(self) -> None:
        messages: dict[str, list[Any]] = {}
        for _ in range(READS_MAX):
            data = self._connection.stream.receive_nowait()
            if data is None:
                break
            if not data:
                raise ConnectionResetError("the node closed the connection")
            self._heard_s = monotonic()
            self._connection.feed(data)
            while (message := self._connection.take()) is not PENDING:
                self._sort(message, messages)
        else:
            raise ProtocolError("a flood of messages")
        for channel, heard in messages.items():
            listener = self._listeners.get(channel)
            if listener is not None:
                listener.hear(heard)

    def _sort(self, message: Any, messages: dict[str, list[Any]]) -> None:
        """Add a message to its session's; report an established subscription to its session."""
        if isinstance(message, Exception):
            raise ProtocolError(str(message))
        if type(message) is not list or len(message) != 3 or type(message[1]) is not str:
            return
        what, channel, _ = message
        if what == "message":
            messages.setdefault(channel, []).append(message)
        elif what == "subscribe":
            listener = self._listeners.get(channel)
            if listener is not None:
                listener.missed()
