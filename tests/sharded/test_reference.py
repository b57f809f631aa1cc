"""A shard behind the routing answers like a separate table, on thousands of random commands."""

from __future__ import annotations

import re
from functools import partial
from typing import Any

import pytest

from lockfast.conformance.commands import compare
from lockfast.core import commands as c
from lockfast.core.memory_rows import MemoryRows
from lockfast.core.placement import Placement
from lockfast.core.table import Table
from lockfast.ports import Wire
from lockfast.runtimes.threads import run
from lockfast.sim.model import Model
from lockfast.stores.sharded.wire import ShardedWire
from tests.sharded.harness import name_in

PLACEMENT = Placement(3)
NAMES = "abcdefghopqt"


class _TableWire:
    """One shard, at the time that the comparison sets."""

    def __init__(self, wakes: list[c.Wake]) -> None:
        self._table = Table(MemoryRows())
        self._wakes = wakes
        self.now_ms = self.wall_us = 0

    async def send(self, command: c.Command, timeout_ms: int) -> c.Reply:
        reply, wakes = self._table.apply(command, self.now_ms, self.wall_us)
        self._wakes += wakes
        return reply

    def close(self) -> None: ...


class RoutedSteps:
    """The commands of the comparison, renamed so that all of them belong to one shard.

    All names and sessions belong to that shard, so the others must stay empty.
    """

    def __init__(self, shard: int) -> None:
        self._shard = shard
        self._wakes: list[c.Wake] = []
        self._shards = [_TableWire(self._wakes) for _ in range(PLACEMENT.shards)]
        shards: list[Wire] = list(self._shards)
        self._wire = ShardedWire("routed", PLACEMENT, shards.__getitem__)
        self._names = {name: name_in(PLACEMENT, shard, name) for name in NAMES}
        self._plain = {there: here for here, there in self._names.items()}

    def apply(self, command: c.Command, now_ms: int, wall_us: int) -> tuple[c.Reply, list[c.Wake]]:
        for shard in self._shards:
            shard.now_ms, shard.wall_us = now_ms, wall_us
        self._wakes.clear()
        whole: Any = self._renamed(command, self._there)
        # Positions of the merged log differ; tests/sharded/test_shards.py checks them.
        wire = self._shards[self._shard] if isinstance(command, c.Events) else self._wire
        reply = run(wire.send(whole, 1000))
        for number, other in enumerate(self._shards):
            if number != self._shard:
                assert run(other.send(c.Sessions(), 1000)) == c.SessionsReply((), False)
        back = partial(self._renamed, how=self._here)
        return back(reply), [back(wake) for wake in self._wakes]

    def _renamed(self, value: Any, how: Any) -> Any:
        if isinstance(value, str):
            return how(value)
        if isinstance(value, tuple):
            renamed = [self._renamed(each, how) for each in value]
            return type(value)(*renamed) if hasattr(value, "_fields") else tuple(renamed)
        return value

    def _there(self, text: str) -> str:
        if re.fullmatch(r"s\d\.\d+|nobody", text):
            return f"{text}-{self._shard:02}"
        first, slash, rest = text.partition("/")
        return self._names.get(first, first) + slash + rest

    def _here(self, text: str) -> str:
        if re.fullmatch(rf"(s\d\.\d+|nobody)-{self._shard:02}", text):
            return text[:-3]
        first, slash, rest = text.partition("/")
        return self._plain.get(first, first) + slash + rest


@pytest.mark.parametrize("shard", [0, 2])
@pytest.mark.parametrize("seed", range(3))
def test_a_shard_answers_as_a_table_of_its_own(shard: int, seed: int) -> None:
    compare(lambda: RoutedSteps(shard), Model, 3 * shard + seed, 150)
