"""Wake a session: LISTEN on a separate connection, in its keeper's thread.

A notification is trusted only if it carries the secret of the session's inbox: any role of the
database may send notifications, but only those that can read our tables know the secret.
"""

from __future__ import annotations

import hmac
import logging
import secrets
from typing import Final

from lockfast.core.commands import (
    WAKE_ENDED,
    WAKE_EVENTS,
    WAKE_GRANTED,
    WAKE_LOOK,
    WAKE_WANTED,
    Wake,
)
from lockfast.ports import Deliver
from lockfast.stores.postgresql.connection import Connection
from lockfast.stores.postgresql.wire import ALL_SESSIONS, Server
from lockfast.stores.reconnecting import ReconnectingListener

logger = logging.getLogger(__name__)

_BELIEVED: Final = frozenset({WAKE_GRANTED, WAKE_WANTED})
"""Sent to this session alone, by the step that granted: no need to ask the server again."""
_KNOWN: Final = frozenset({*_BELIEVED, WAKE_LOOK, WAKE_ENDED, WAKE_EVENTS})


class PostgresWakeListener(ReconnectingListener[Connection]):
    """Listens on the channel of the namespace."""

    def __init__(self, server: Server, session: str, deliver: Deliver) -> None:
        super().__init__(session)
        self._secret = secrets.token_hex(8)
        self.inbox = f"{server.channel} {self._secret}"
        self._server = server
        self._deliver = deliver
        self._is_off = server.address.listen == "off"
        server.attach(session, deliver)

    def _connect(self, until_s: float) -> Connection:
        return Connection(self._server.address.for_listening(), until_s)

    def _subscribe(self, connection: Connection, until_s: float) -> bool:
        if connection.is_pooled:
            logger.warning(
                "%s: a connection pooler stands in between, which cannot deliver "
                "notifications; waiters are woken by keep-alives. Name the server itself "
                "with ?listen=host:port, or silence this with ?listen=off",
                self._server.address.label,
            )
            return False
        connection.run(f'LISTEN "{self._server.channel}"', until_s=until_s)
        return True

    def _read(self, connection: Connection) -> list[Wake]:
        wakes: list[Wake] = []
        try:
            for payload in connection.notifications():
                self._take(payload, wakes)
        except OSError:
            self._disconnect()
        return wakes

    def _take(self, payload: str, wakes: list[Wake]) -> None:
        try:
            secret, session, n, what, token = payload.split(" ")
            wake = Wake(self.inbox, session, int(n), what, int(token))
        except ValueError:
            return  # not from a step of ours: any role may notify
        is_ours = self._session in (session, ALL_SESSIONS)
        if not is_ours or not hmac.compare_digest(secret, self._secret):
            return
        if what in _BELIEVED:
            self._deliver(wake)
        elif what in _KNOWN:
            wakes.append(wake)

    def close(self) -> None:
        self._server.detach(self._session)
        super().close()
