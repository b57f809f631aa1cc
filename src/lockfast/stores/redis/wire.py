"""Commands to the server and replies back, for callers that block."""

from __future__ import annotations

import contextlib
import os
from collections import deque
from collections.abc import Callable
from time import monotonic
from typing import Any, Final

from lockfast.core.commands import Command, Reply
from lockfast.errors import StoreError
from lockfast.stores.redis.address import Address
from lockfast.stores.redis.codec import ENCODERS, PLAIN, has_more, reply_to
from lockfast.stores.redis.connection import Connection, pack, pack_four
from lockfast.stores.redis.errors import is_script_missing, translate
from lockfast.stores.redis.scripts import keys_of, script_of

IDLE_MAX: Final = 32
"""Connections kept for the next burst of callers."""

_inherited: Final[list[Connection]] = []
"""Connections of a parent process: neither used nor closed here."""

_forks = 0
"""How often this process was forked off another; counted, so that nobody has to ask."""


def _after_fork_in_child() -> None:
    global _forks
    _forks += 1


os.register_at_fork(after_in_child=_after_fork_in_child)


class Shard:
    """What goes over a connection: the same for both faces."""

    def __init__(self, address: Address) -> None:
        self.address = address
        self.is_known = False
        """The server has been looked at and found fit."""
        self._keys = keys_of(address.namespace)
        self._heads: dict[type, bytes] = {}

    def packed(self, command: Command, clock: str = "") -> bytes:
        kind: type = type(command)
        plainly = PLAIN.get(kind)
        plain = plainly(command) if plainly is not None else None
        if plain is None or clock:
            return pack(*self._call(kind, clock), *(plain or ENCODERS[kind](command)))
        # All that comes before a plain claim is the same each time: packed once.
        head = self._heads.get(kind)
        if head is None:
            nothing = pack_four("", "", "", "")
            head = self._heads[kind] = pack(*self._call(kind), "", "", "", "")[: -len(nothing)]
        return head + pack_four(*plain)

    def _call(self, kind: type, clock: str = "") -> tuple[str | bytes | int, ...]:
        keys: tuple[str | bytes, ...] = (*self._keys, clock) if clock else self._keys
        return ("EVALSHA", script_of(kind).sha, len(keys), *keys)

    def loading(self, command: Command) -> bytes:
        """To be sent when the server does not have the command's script."""
        kind: type = type(command)
        return pack("SCRIPT", "LOAD", script_of(kind).body)

    def reply(self, command: Command, found: Any) -> Reply:
        return reply_to(command, self.checked(found))

    def checked(self, found: Any) -> Any:
        if isinstance(found, Exception):
            raise translate(str(found), self.address.label)
        return found


class BlockingWire:
    """Commands from any number of threads, each on a connection that no other uses then."""

    def __init__(
        self, shard: Shard, on_close: Callable[[BlockingWire], None] = lambda wire: None
    ) -> None:
        self._shard = shard
        self._on_close = on_close
        self._idle: deque[Connection] = deque()
        self._forks = _forks
        self._closed = False
        self.connections = 0
        """How many were made: a new one may lead to another server."""

    async def send(self, command: Command, timeout_ms: int) -> Reply:
        found = self.exchange(command, timeout_ms)
        if type(found) is int:
            return reply_to(command, found)
        if has_more(found):
            self._go_on(command, monotonic() + timeout_ms / 1000)
        return self._shard.reply(command, found)

    def _go_on(self, command: Command, until_s: float) -> None:
        """End what claims an ended session has left, some at a time, so that others are served.

        If it fails nothing is lost: whoever comes next ends some.
        """
        with contextlib.suppress(StoreError):
            while (left_s := until_s - monotonic()) > 0:
                if not has_more(self.exchange(command, int(left_s * 1000) + 1)):
                    return

    def exchange(self, command: Command, timeout_ms: int, clock: str = "") -> Any:
        """What the script answers; only the comparison with the reference sets the clock."""
        until_s = monotonic() + timeout_ms / 1000
        packed = self._shard.packed(command, clock)
        connection = self._take(until_s)
        try:
            found = connection.exchange(packed, until_s)
            if isinstance(found, Exception) and is_script_missing(str(found)):
                # Surely not carried out. Both in one go: what is loaded may be flushed again.
                _, found = connection.exchange_all([self._shard.loading(command), packed], until_s)
        except BaseException:
            connection.close()
            raise
        if self._closed or len(self._idle) >= IDLE_MAX:
            connection.close()
        else:
            self._idle.append(connection)
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
        shard = self._shard
        connection = Connection(shard.address, until_s, first=not shard.is_known)
        shard.is_known = True
        self.connections += 1
        return connection

    def close(self) -> None:
        self._closed = True
        self._on_close(self)
        if self._forks == _forks:
            while self._idle:
                self._idle.pop().close()
