"""Receive the wakes of one session, by a subscription on a separate connection."""

from __future__ import annotations

from typing import Any, Final

from lockfast.core.commands import Wake
from lockfast.ports import Deliver
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
    """Subscribes to the channel of the session."""

    def __init__(self, address: Address, session: str, deliver: Deliver) -> None:
        super().__init__(session)
        self._wakes = SessionWakes(session, deliver, confirmed=address.wait > 0)
        self.inbox = self._wakes.inbox
        self._address = address
        # A server listens for all sessions; no namespace contains pattern characters.
        self._subscribe_command = "SUBSCRIBE" if session else "PSUBSCRIBE"
        self._channel = channel_of(address.namespace, session or "*")
        self._is_tls = address.tls is not None

    def _connect(self, until_s: float) -> Connection:
        return Connection(self._address, until_s, checked=False)

    def _subscribe(self, connection: Connection, until_s: float) -> bool:
        answer = connection.exchange(pack(self._subscribe_command, self._channel), until_s)
        if isinstance(answer, Exception):
            raise translate(str(answer), self._address.label)
        return True

    def _read(self, connection: Connection) -> list[Wake]:
        messages: list[Any] = []
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
