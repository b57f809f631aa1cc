"""Send the commands of the blocking API."""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic
from typing import Any

from lockfast.core.commands import Command, Reply
from lockfast.stores.redis.codec import BYTES_MAX
from lockfast.stores.redis.connection import Connection
from lockfast.stores.redis.errors import is_demoted, is_script_missing
from lockfast.stores.redis.pool import ConnectionPool
from lockfast.stores.redis.protocol import ScriptProtocol


class BlockingWire:
    """Commands from any number of threads, each on a connection that it uses exclusively."""

    def __init__(
        self, protocol: ScriptProtocol, on_close: Callable[[BlockingWire], None] = lambda wire: None
    ) -> None:
        self._protocol = protocol
        self._on_close = on_close
        self._pool = ConnectionPool(protocol.address)

    @property
    def connections(self) -> int:
        """The number of connections made so far; a new one may lead to another server."""
        return self._pool.connections

    async def send(self, command: Command, timeout_ms: int) -> Reply:
        until_s = monotonic() + timeout_ms / 1000
        protocol, pool = self._protocol, self._pool
        connection = pool.take(until_s)
        try:
            found = self._exchange(connection, command, until_s)
            refused = isinstance(found, Exception)
            if not refused:
                # Decode before the connection is reused: if the answer is malformed, requests and
                # replies may be out of step.
                reply = protocol.reply(command, found)
                confirmation = protocol.confirmation
                if confirmation is not None and confirmation.needed(command, reply):
                    packed = confirmation.packed(until_s - monotonic())
                    answer = connection.exchange(packed, until_s)
                    reply = confirmation.judged(command, reply, answer)
        except BaseException:
            connection.close()
            raise
        if refused and is_demoted(str(found)):
            connection.close()
        else:
            pool.put_back(connection)
        if refused:
            raise protocol.error(found)
        return reply

    def exchange(self, command: Command, timeout_ms: int, clock: str = "") -> Any:
        """Return the script's raw answer; for tests, which may set the clock."""
        until_s = monotonic() + timeout_ms / 1000
        connection = self._pool.take(until_s)
        try:
            found = self._exchange(connection, command, until_s, clock)
        except BaseException:
            connection.close()
            raise
        self._pool.put_back(connection)
        return found

    def _exchange(
        self, connection: Connection, command: Command, until_s: float, clock: str = ""
    ) -> Any:
        protocol = self._protocol
        packed = protocol.packed(command, clock)
        bytes_max = BYTES_MAX[type(command)]
        found = connection.exchange(packed, until_s, bytes_max)
        if isinstance(found, Exception) and is_script_missing(str(found)):
            # Certainly not executed. Load and call together: the script may be flushed again.
            _, found = connection.exchange_all(
                [protocol.loading(command), packed], until_s, bytes_max
            )
        return found

    def close(self) -> None:
        self._on_close(self)
        self._pool.close()
