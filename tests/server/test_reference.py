"""Commands through HTTP behave like the lock table, step by step, on random commands."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

from lockfast.conformance.commands import compare
from lockfast.core import commands as c
from lockfast.core.memory_rows import MemoryRows
from lockfast.core.table import Table
from lockfast.runtimes.threads import run
from lockfast.stores import memory
from lockfast.stores.lockserver.opening import open_store
from lockfast.stores.registry import parse_url
from tests.servers.lockserver import ServerThread

STEPS = 60
SEEDS = range(6)
SEND_MS = 10_000

_numbers = itertools.count()


class Clock:
    now_ms = 0
    wall_us = 0


class ServedSteps:
    """A served memory table behind `apply`, with the test's clock."""

    def __init__(self, server: ServerThread, clock: Clock) -> None:
        self._clock = clock
        url = server.url(namespace=f"reference{next(_numbers)}")
        self._wire = open_store(parse_url(url), "threads").caller_wire()
        self._wakes: list[c.Wake] = []
        self._inboxes: dict[str, str] = {}
        run(self._wire.send(c.Events(None), SEND_MS))  # now the server has opened its table
        *_, table = memory._tables.values()
        vars(table)["_tell"] = self._tell

    def _tell(self, wake: c.Wake) -> None:
        """The server's inbox is its own; the client's is what the reference has."""
        self._wakes.append(wake._replace(inbox=self._inboxes.get(wake.session, "")))

    def apply(self, command: c.Command, now_ms: int, wall_us: int) -> tuple[c.Reply, list[c.Wake]]:
        self._clock.now_ms, self._clock.wall_us = now_ms, wall_us
        opening = command.open if isinstance(command, c.Enter) else command
        if isinstance(opening, c.Open):
            self._inboxes.setdefault(opening.session, opening.inbox)
        self._wakes.clear()
        reply = run(self._wire.send(command, SEND_MS))
        return reply, list(self._wakes)


class TableSteps:
    def __init__(self) -> None:
        self._table = Table(MemoryRows())

    def apply(self, command: c.Command, now_ms: int, wall_us: int) -> tuple[c.Reply, list[c.Wake]]:
        return self._table.apply(_without_process(command), now_ms, wall_us)


def _without_process(command: c.Command) -> c.Command:
    """The server does not accept a client's process."""
    if isinstance(command, c.Open):
        return command._replace(process="")
    if isinstance(command, c.Enter) and command.open is not None:
        return command._replace(open=command.open._replace(process=""))
    if isinstance(command, c.Contend):
        enter = _without_process(command.enter)
        assert isinstance(enter, c.Enter)
        return command._replace(enter=enter)
    return command


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()

    class Made(memory.MemoryTable):
        def __init__(self, now_ms: object) -> None:
            super().__init__(lambda: clock.now_ms, lambda: clock.wall_us)

    monkeypatch.setattr(memory, "MemoryTable", Made)
    return clock


@pytest.fixture
def server(clock: Clock) -> Iterator[ServerThread]:
    with ServerThread("memory://reference") as started:
        yield started


@pytest.mark.parametrize("seed", SEEDS)
def test_same_as_the_table(server: ServerThread, clock: Clock, seed: int) -> None:
    compare(lambda: ServedSteps(server, clock), TableSteps, seed, STEPS)
