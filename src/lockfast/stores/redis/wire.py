"""Commands and replies of the blocking API."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from time import monotonic
from typing import Any, Final

from lockfast.core.commands import Command, Reply
from lockfast.runtimes.platform import at_fork
from lockfast.stores.redis.connection import Connection
from lockfast.stores.redis.errors import is_demoted, is_script_missing
from lockfast.stores.redis.protocol import ScriptProtocol

IDLE_MAX: Final = 32
"""Connections kept for the next burst of callers."""

_inherited: Final[list[Connection]] = []
"""Connections of a parent process: neither used nor closed here."""

_forks = 0
"""How many forks lie between the first process and this one; cheaper to read than the pid."""


def _after_fork_in_child() -> None:
    global _forks
    _forks += 1


at_fork(after_in_child=_after_fork_in_child)


class BlockingWire:
    """Commands from any number of threads, each on a connection that no other uses then."""

    def __init__(
        self, protocol: ScriptProtocol, on_close: Callable[[BlockingWire], None] = lambda wire: None
    ) -> None:
        self._protocol = protocol
        self._on_close = on_close
        self._idle: deque[Connection] = deque()
        self._forks = _forks
        self._closed = False
        self.connections = 0
        """How many were made: a new one may lead to another server."""

    async def send(self, command: Command, timeout_ms: int) -> Reply:
        until_s = monotonic() + timeout_ms / 1000
        connection = self._take(until_s)
        try:
            found = self._exchange(connection, command, until_s)
            if not isinstance(found, Exception):
                # Decoded before the connection is used again: if the answer makes no sense,
                # requests and replies may be out of step.
                reply = self._confirmed(connection, command, found, until_s)
        except BaseException:
            connection.close()
            raise
        if isinstance(found, Exception):
            if is_demoted(str(found)):
                connection.close()
            else:
                self._put_back(connection)
            raise self._protocol.error(found)
        self._put_back(connection)
        return reply

    def _confirmed(
        self, connection: Connection, command: Command, found: Any, until_s: float
    ) -> Reply:
        """The reply in an answer; with `?wait=`, after replicas have confirmed a grant."""
        reply = self._protocol.reply(command, found)
        confirmation = self._protocol.confirmation
        if confirmation is None or not confirmation.needed(command, reply):
            return reply
        left_s = until_s - monotonic()
        answer = connection.exchange(confirmation.packed(left_s), until_s)
        return confirmation.judged(command, reply, answer)

    def exchange(self, command: Command, timeout_ms: int, clock: str = "") -> Any:
        """Return the script's answer as it is; for tests, which may set the clock."""
        until_s = monotonic() + timeout_ms / 1000
        connection = self._take(until_s)
        try:
            found = self._exchange(connection, command, until_s, clock)
        except BaseException:
            connection.close()
            raise
        self._put_back(connection)
        return found

    def _exchange(
        self, connection: Connection, command: Command, until_s: float, clock: str = ""
    ) -> Any:
        protocol = self._protocol
        packed = protocol.packed(command, clock)
        bytes_max = protocol.bytes_max(command)
        found = connection.exchange(packed, until_s, bytes_max)
        if isinstance(found, Exception) and is_script_missing(str(found)):
            # Surely not carried out. Load and call together: a script may be flushed again.
            _, found = connection.exchange_all(
                [protocol.loading(command), packed], until_s, bytes_max
            )
        return found

    def _take(self, until_s: float) -> Connection:
        if self._forks != _forks:
            _inherited.extend(self._idle)
            self._idle = deque()
            self._forks = _forks
        while True:
            try:
                connection = self._idle.pop()
            except IndexError:
                break
            if connection.stream.is_usable():
                return connection
            connection.close()
        connection = Connection(self._protocol.address, until_s)
        self.connections += 1
        return connection

    def _put_back(self, connection: Connection) -> None:
        if self._closed or len(self._idle) >= IDLE_MAX:
            connection.close()
        else:
            self._idle.append(connection)

    def close(self) -> None:
        self._closed = True
        self._on_close(self)
        if self._forks == _forks:
            while self._idle:
                self._idle.pop().close()
