"""Wake a session: LISTEN on a separate connection, in its keeper's thread.

A notification is trusted only if it carries the secret of the session's inbox: any role of the
database may send notifications, but only those that can read our tables know the secret.
"""

from __future__ import annotations

import hmac
import logging
import secrets
from collections.abc import Sequence
from time import monotonic
from typing import Final

from lockfast.core.commands import (
    WAKE_ENDED,
    WAKE_EVENTS,
    WAKE_GRANTED,
    WAKE_LOOK,
    WAKE_WANTED,
    Blocker,
    Wake,
)
from lockfast.errors import StoreError
from lockfast.ports import WAKE_MISSED, Deliver
from lockfast.stores.postgresql.connection import Connection
from lockfast.stores.postgresql.wire import ALL_SESSIONS, Server
from lockfast.stores.reconnecting import ReconnectingListener

logger = logging.getLogger(__name__)

_BELIEVED: Final = frozenset({WAKE_GRANTED, WAKE_WANTED})
"""Sent to this session alone, by the step that granted: no need to ask the server again."""
_KNOWN: Final = frozenset({*_BELIEVED, WAKE_LOOK, WAKE_ENDED, WAKE_EVENTS})


class PostgresWakeListener(ReconnectingListener[Connection]):
    """One session's subscription. Only its keeper listens, on one thread."""

    def __init__(self, server: Server, session: str, deliver: Deliver) -> None:
        super().__init__()
        self._secret = secrets.token_hex(8)
        self.inbox = f"{server.channel} {self._secret}"
        self._server = server
        self._session = session
        self._deliver = deliver
        self._is_off = server.address.listen == "off"
        server.attach(session, deliver)

    async def listen(self, timeout_ms: int | None) -> Sequence[Wake]:
        until_s = None if timeout_ms is None else monotonic() + timeout_ms / 1000
        if self._connection is None and self._start(until_s):
            # Notifications sent before the connection was established are lost: check all claims.
            return [Wake(self.inbox, self._session, 0, WAKE_MISSED)]
        while True:
            heard, interrupted = self._wait(until_s)
            wakes = self._read() if heard else []
            is_due = until_s is not None and monotonic() >= until_s
            if wakes or interrupted or is_due or not heard or self._connection is None:
                return wakes

    # ── listening ────────────────────────────────────────────────────────────────────

    def _start(self, until_s: float | None) -> bool:
        give_up_s = self._connect_until_s(until_s)
        if give_up_s is None:
            return False
        try:
            connection = Connection(self._server.address.for_listening(), give_up_s)
            try:
                if connection.is_pooled:
                    self._is_off = True
                    logger.warning(
                        "%s: a connection pooler stands in between, which cannot deliver "
                        "notifications; waiters are woken by keep-alives. Name the server itself "
                        "with ?listen=host:port, or silence this with ?listen=off",
                        self._server.address.label,
                    )
                    connection.close()
                    return False
                connection.run(f'LISTEN "{self._server.channel}"', until_s=give_up_s)
            except BaseException:
                connection.close()
                raise
        except StoreError:
            # Not reported here: the keeper's own requests fail too, and are retried.
            self._connect_failed()
            return False
        self._connected(connection, connection.fileno())
        return True

    # ── receiving ────────────────────────────────────────────────────────────────────

    def _read(self) -> list[Wake]:
        wakes: list[Wake] = []
        if self._connection is None:
            return wakes
        try:
            for payload in self._connection.notifications():
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

    def watch_over(self, n: int, blockers: Sequence[Blocker]) -> None:
        """Do nothing: processes on other machines cannot be watched."""

    def close(self) -> None:
        self._server.detach(self._session)
        super().close()
