"""Idle connections of the blocking API to one server, kept for the next request."""

from __future__ import annotations

from collections import deque
from typing import Final

from lockfast.runtimes.platform import at_fork
from lockfast.stores.redis.address import Address
from lockfast.stores.redis.connection import Connection

IDLE_MAX: Final = 32
"""Connections kept for the next burst of callers."""

_inherited: Final[list[Connection]] = []
"""Connections inherited from a parent process: neither used nor closed here."""

_forks = 0
"""How many forks separate this process from the first; cheaper to read than the PID."""


def _after_fork_in_child() -> None:
    global _forks
    _forks += 1


at_fork(after_in_child=_after_fork_in_child)


class ConnectionPool:
    """Connections for any number of threads; each is used by one thread at a time."""

    def __init__(self, address: Address, *, probed: bool = True) -> None:
        self._address = address
        self._probed = probed
        self._idle: deque[Connection] = deque()
        self._forks = _forks
        self._closed = False
        self.connections = 0
        """The number of connections made so far; a new one may lead to another server."""

    def take(self, until_s: float) -> Connection:
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
        connection = Connection(self._address, until_s, probed=self._probed)
        self.connections += 1
        return connection

    def put_back(self, connection: Connection) -> None:
        if self._closed or len(self._idle) >= IDLE_MAX:
            connection.close()
        else:
            self._idle.append(connection)

    def close(self) -> None:
        self._closed = True
        if self._forks == _forks:
            while self._idle:
                self._idle.pop().close()
