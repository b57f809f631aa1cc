"""The scripts do what the lock table does, step by step, on thousands of random commands."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from lockfast.conformance.commands import compare
from lockfast.core import commands as c
from lockfast.core.lines import FAR_MS
from lockfast.core.memory_rows import MemoryRows
from lockfast.core.table import Table
from lockfast.stores.redis.address import parse
from lockfast.stores.redis.wire import BlockingWire, Shard
from lockfast.stores.registry import parse_url
from tests.servers.redis import RedisServer

STEPS = 220
SEEDS = range(30)


class ScriptSteps:
    """The scripts behind `apply`, with a clock that the test sets."""

    def __init__(self, url: str) -> None:
        self._wire = BlockingWire(Shard(parse(parse_url(url))))
        self._places: dict[tuple[str, int], tuple[c.Place, ...]] = {}

    def apply(self, command: c.Command, now_ms: int, wall_us: int) -> tuple[c.Reply, list[c.Wake]]:
        if isinstance(command, c.Enter):
            self._places.setdefault(command[:2], command.places)
        elif isinstance(command, c.Leave):
            # As clients do: it opens the scripts' short way out.
            command = command._replace(places=self._places.get(command[:2], ()))
        reply, wakes = self._wire.step(command, now_ms, wall_us)
        if isinstance(reply, c.Queued) and reply.look_ms == FAR_MS:
            reply = reply._replace(look_ms=FAR_MS - now_ms)
        return reply, wakes

    def close(self) -> None:
        self._wire.close()


@pytest.fixture
def make_subject(server: RedisServer) -> Iterator[Callable[[], ScriptSteps]]:
    made: list[ScriptSteps] = []

    def make() -> ScriptSteps:
        made.append(ScriptSteps(server.url()))
        return made[-1]

    yield make
    for subject in made:
        subject.close()


@pytest.mark.parametrize("seed", SEEDS)
def test_scripts_and_table_agree(make_subject: Callable[[], ScriptSteps], seed: int) -> None:
    """30 × 220 commands: the same answers, wakes, events and state after each."""
    outcome = compare(make_subject, lambda: Table(MemoryRows()), seed, STEPS)
    assert len(outcome.script) == STEPS
