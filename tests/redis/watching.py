"""The commands of clients as the server's MONITOR reports them."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from time import monotonic
from types import TracebackType
from typing import NamedTuple, Self

from lockfast.core import commands as c
from lockfast.stores.redis.address import Address
from lockfast.stores.redis.connection import Connection
from lockfast.stores.redis.resp import pack
from lockfast.stores.redis.scripts import Script, script_of
from tests.servers.redis import RedisServer

_LINE = re.compile(r'^[\d.]+ \[\d+ (\S+)\] "([^"]+)"(?: "([^"]*)")?(?:.* "LIMIT" "\d+" "(\d+)"$)?')
_END = "lockfast-test-end"
PATIENCE_S = 30.0


class Seen(NamedTuple):
    by: str
    """`lua` for calls by a script, else the client's address."""
    command: str
    first: str
    """Its first argument."""
    limit: int = 0
    """How many entries it asks for, if it has a limit."""


class Monitor:
    """Records every command that a server receives within a block."""

    def __init__(self, server: RedisServer) -> None:
        self._server = server

    def __enter__(self) -> Self:
        until_s = monotonic() + PATIENCE_S
        path = str(self._server.socket)
        self._connection = Connection(Address(path, path=path), until_s, checked=False)
        assert self._connection.exchange(pack("MONITOR"), until_s) == "OK"
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._connection.close()

    def seen(self) -> list[Seen]:
        """Return all commands since the last call."""
        self._server.run("ECHO", _END)
        found: list[Seen] = []
        while True:
            line = self._connection.receive(monotonic() + PATIENCE_S)
            match = _LINE.match(line)
            assert match is not None, line
            seen = Seen(match[1], match[2].upper(), match[3] or "", int(match[4] or 0))
            if (seen.command, seen.first) == ("ECHO", _END):
                return found
            found.append(seen)

    def by_clients(self) -> list[Seen]:
        """Return the commands of clients, without those that set up a connection."""
        greetings = ("CLIENT", "INFO", "EVAL", "SUBSCRIBE", "SCRIPT")
        return [seen for seen in self.seen() if seen.by != "lua" and seen.command not in greetings]

    def by_callers(self) -> list[Seen]:
        """Return the commands of callers: those of clients, without the checks of keepers."""
        return not_by_keepers(self.by_clients())


def not_by_keepers(seen: list[Seen]) -> list[Seen]:
    checks = {script_of(kind).sha.decode() for kind in (c.Renew, c.Claims)}
    return [one for one in seen if one.first not in checks]


@contextlib.contextmanager
def until_heard(server: RedisServer, sessions: int = 1) -> Iterator[None]:
    """Wait at the end of the block until this many new sessions receive their wakes.

    Each sends a keep-alive once it has subscribed, to find what it may have missed; if claims come
    and go at that instant, it reads them as well.
    """
    with Monitor(server) as monitor:
        yield
        seen = monitor.seen()
        while calls_of(script_of(c.Renew), seen) < sessions:
            seen += monitor.seen()


def calls_of(script: Script, seen: list[Seen]) -> int:
    sha = script.sha.decode()
    return sum((one.command, one.first) == ("EVALSHA", sha) for one in seen)
