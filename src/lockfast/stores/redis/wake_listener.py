"""Receive the wakes of one session, by a subscription on a separate connection.

Messages published before the subscription was established, or while it was broken, are lost. After
each (re)connection the listener therefore reports WAKE_MISSED, and the keeper checks all claims.
"""

from __future__ import annotations

from collections.abc import Sequence
from time import monotonic
from typing import Any, Final

from lockfast.core.commands import Blocker, Wake
from lockfast.errors import StoreError
from lockfast.ports import WAKE_MISSED, Deliver
from lockfast.stores.reconnecting import ReconnectingListener
from lockfast.stores.redis.address import Address
from lockfast.stores.redis.connection import Connection
from lockfast.stores.redis.errors import translate
from lockfast.stores.redis.resp import PENDING, ProtocolError, pack
from lockfast.stores.redis.scripts import channel_of
from lockfast.stores.redis.session_wakes import SessionWakes
from lockfast.stores.stream import RECEIVE_BYTES

READS_MAX: Final = 64
"""How often to read before the keeper continues with its other work."""


class RedisWakeListener(ReconnectingListener[Connection]):
    """One session's subscription. Only its keeper listens, on one thread."""

    def __init__(self, address: Address, session: str, deliver: Deliver) -> None:
        super().__init__()
        self._wakes = SessionWakes(session, deliver, confirmed=address.wait > 0)
        self.inbox = self._wakes.inbox
        self._address = address
        # A server listens for all sessions; no namespace contains pattern characters.
        self._subscribe_command = "SUBSCRIBE" if session else "PSUBSCRIBE"
        self._channel = channel_of(address.namespace, session or "*")
        self._session = session
        self._is_tls = address.tls is not None

    async def listen(self, timeout_ms: int | None) -> Sequence[Wake]:
        until_s = None if timeout_ms is None else monotonic() + timeout_ms / 1000
        if self._connection is None and self._subscribe(until_s):
            return [Wake(self.inbox, self._session, 0, WAKE_MISSED)]
        while True:
            readable, interrupted = self._wait(until_s)
            wakes = self._read() if readable else []
            # After delivering a grant, keep listening: the keeper's work between two calls would
            # only take the CPU from the thread that was granted the lock.
            is_due = until_s is not None and monotonic() >= until_s
            if wakes or interrupted or is_due or not readable or self._connection is None:
                return wakes

    # ── subscribing ──────────────────────────────────────────────────────────────────

    def _subscribe(self, until_s: float | None) -> bool:
        """Connect and subscribe, unless an attempt has just failed; return True on success."""
        give_up_s = self._connect_until_s(until_s)
        if give_up_s is None:
            return False
        try:
            connection = Connection(self._address, give_up_s, checked=False)
            try:
                answer = connection.exchange(
                    pack(self._subscribe_command, self._channel), give_up_s
                )
                if isinstance(answer, Exception):
                    raise translate(str(answer), self._address.label)
            except BaseException:
                connection.close()
                raise
        except StoreError:
            # Not reported here: the keeper's own requests fail too, and are retried.
            self._connect_failed()
            return False
        self._connected(connection, connection.stream.fileno())
        return True

    # ── receiving ────────────────────────────────────────────────────────────────────

    def _read(self) -> list[Wake]:
        connection = self._connection
        messages: list[Any] = []
        if connection is None:
            return []
        try:
            for _ in range(READS_MAX):
                data = connection.stream.receive_nowait()
                if data is None:
                    break
                if not data:
                    self._disconnect()
                    break
                connection.feed(data)
                while (message := connection.take()) is not PENDING:
                    messages.append(message)
                # With TLS, more data may already be decrypted than poll() knows of.
                if len(data) < RECEIVE_BYTES and not self._is_tls:
                    break
            else:
                self._disconnect()  # a flood: none of our messages is that large
        except (OSError, ProtocolError):
            self._disconnect()
        return self._wakes.hear_all(messages)

    def watch_over(self, n: int, blockers: Sequence[Blocker]) -> None:
        """Do nothing: processes on other machines cannot be watched."""
