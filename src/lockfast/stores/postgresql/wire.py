"""Send the commands of the blocking API."""

from __future__ import annotations

import logging
import secrets
import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from time import monotonic
from typing import Final

from lockfast.core.commands import (
    WAKE_GRANTED,
    WAKE_LOOK,
    Command,
    Ended,
    Enter,
    Refused,
    Reply,
    Wake,
)
from lockfast.errors import StoreBusyError
from lockfast.ports import Deliver
from lockfast.runtimes.platform import at_fork
from lockfast.stores.forks import restart_in_children
from lockfast.stores.postgresql.address import Address
from lockfast.stores.postgresql.connection import Connection
from lockfast.stores.postgresql.migration import ensure
from lockfast.stores.postgresql.shortcuts import call_for, reply_to, run_call
from lockfast.stores.postgresql.steps import Clock, Steps

logger = logging.getLogger(__name__)

_inherited: Final[list[object]] = []
"""Connections inherited from a parent process: neither used nor closed here."""

_forks = 0


def _after_fork_in_child() -> None:
    global _forks
    _forks += 1


at_fork(after_in_child=_after_fork_in_child)


ALL_SESSIONS: Final = ""
"""The session of a server's listener, which receives for every session with its inbox."""


class Server:
    """State shared by the wires and listeners of one client."""

    def __init__(self, address: Address) -> None:
        self.address = address
        self._is_known = False
        self.start()
        restart_in_children(self)

    def start(self) -> None:
        """Begin without sessions, in a new client or in a forked child.

        A child that kept its parent's channel would take the sessions of its parent and its
        siblings for its own, and not notify them.
        """
        self.channel = f"lockfast_{secrets.token_hex(8)}"
        """The channel for notifications to all sessions of this client, in this process."""
        self._listeners: dict[str, Deliver] = {}

    def connect(self, until_s: float) -> Connection:
        connection = Connection(self.address, until_s)
        if not self._is_known:
            try:
                ensure(connection, until_s)
            except BaseException:
                connection.close()
                raise
            self._is_known = True
        return connection

    def apply(
        self,
        connection: Connection,
        command: Command,
        until_s: float,
        wakes: list[Wake],
        clock: Clock | None = None,
    ) -> Reply:
        """Execute one command in one or several transactions; append its wakes to `wakes`."""
        call = call_for(command, self.channel)
        if call is not None:
            now_ms = clock.now_ms if clock is not None else None
            reply = reply_to(command, run_call(connection, call, until_s, now_ms), wakes)
            if reply is not None:
                return reply
        steps = Steps(connection, until_s, self.channel, clock)
        try:
            return steps.apply(command)
        finally:
            wakes += steps.wakes

    def busy(self) -> StoreBusyError:
        """Return the error for a command that got no connection in time."""
        return StoreBusyError(
            self.address.label,
            f"all {self.address.connections_max} connections of this client are busy",
            "raise ?connections= in the URL",
        )

    def attach(self, session: str, deliver: Deliver) -> None:
        self._listeners[session] = deliver

    def detach(self, session: str) -> None:
        self._listeners.pop(session, None)

    def deliver(self, wakes: Sequence[Wake]) -> None:
        """Deliver wakes to the sessions of this client; the others were notified."""
        of_all = self._listeners.get(ALL_SESSIONS)
        for wake in wakes:
            deliver = self._listeners.get(wake.session, of_all)
            if deliver is not None:
                deliver(wake)


def hints(wakes: Sequence[Wake]) -> list[Wake]:
    """Return the wakes of a failed command: it may be partly committed, so make sessions look."""
    return [w._replace(what=WAKE_LOOK) if w.what == WAKE_GRANTED else w for w in wakes]


class BlockingWire:
    """Commands from any number of threads, each on a connection that it uses exclusively."""

    def __init__(
        self, server: Server, on_close: Callable[[BlockingWire], None] = lambda wire: None
    ) -> None:
        self._server = server
        self._on_close = on_close
        self._closed = False
        self.connections = 0
        """The number of connections made so far; a new one may lead to another server."""
        self._start()

    def _start(self) -> None:
        self._forks = _forks
        self._idle: deque[Connection] = deque()
        count = self._server.address.connections_max
        self._slots = threading.Semaphore(count)
        self._entering = threading.Semaphore(max(1, count - 1))
        """Claims leave a connection for releases, which a crowd of claims would delay."""
        self._opened = ""
        """The session that was opened last, by a claim."""

    async def send(self, command: Command, timeout_ms: int) -> Reply:
        return self.apply(command, timeout_ms)

    def apply(self, command: Command, timeout_ms: int, clock: Clock | None = None) -> Reply:
        """Execute a command, blocking."""
        until_s = monotonic() + timeout_ms / 1000
        if self._forks != _forks:
            _inherited.append(self._idle)
            self._start()
        needed = [self._slots]
        if isinstance(command, Enter):
            needed.insert(0, self._entering)
        with ExitStack() as taken:
            for slots in needed:
                # Leave half of the time for the command itself.
                if not slots.acquire(timeout=max(0.0, until_s - monotonic() - timeout_ms / 2000)):
                    raise self._server.busy()
                taken.callback(slots.release)
            if not isinstance(command, Enter) or command.open is None:
                return self._on_a_connection(command, until_s, clock)
            # Each claim of a crowd that met a new session carries its `Open`. That locks the
            # session and takes several flights, so leave it out once a claim has a reply.
            if command.session == self._opened:
                command = command._replace(open=None)
            reply = self._on_a_connection(command, until_s, clock)
            if not isinstance(reply, Ended | Refused):
                self._opened = command.session
            return reply

    def _on_a_connection(self, command: Command, until_s: float, clock: Clock | None) -> Reply:
        connection = self._take(until_s)
        wakes: list[Wake] = []
        try:
            reply = self._server.apply(connection, command, until_s, wakes, clock)
        except BaseException:
            connection.close()
            self._server.deliver(hints(wakes))
            raise
        if self._closed:
            connection.close()
        else:
            self._idle.append(connection)
        self._server.deliver(wakes)
        return reply

    def _take(self, until_s: float) -> Connection:
        while True:
            try:
                connection = self._idle.pop()
            except IndexError:
                break
            if connection.is_usable():
                return connection
            connection.close()
        connection = self._server.connect(until_s)
        self.connections += 1
        return connection

    def close(self) -> None:
        self._closed = True
        self._on_close(self)
        if self._forks == _forks:
            while self._idle:
                self._idle.pop().close()
