"""The conformance suite on a store of several shards."""

from __future__ import annotations

import itertools

from lockfast.conformance.harness import Harness
from lockfast.core.placement import Placement
from lockfast.ports import Capabilities, Store
from lockfast.stores.memory import MemoryStore, MemoryTable
from lockfast.stores.sharded.store import ShardedStore
from tests.conformance.simulator import SimHarness


def name_in(placement: Placement, shard: int, name: str) -> str:
    """Return a name like this one that is placed in a shard."""
    names = (f"{name}~{i}" if i else name for i in itertools.count())
    return next(each for each in names if placement.shard_of_name("lock", each) == shard)


class _InShards(Harness):
    """What tests need to know of the placement."""

    placement: Placement

    def together(self, *names: str) -> tuple[str, ...]:
        return tuple(name_in(self.placement, 1, name) for name in names)

    def session_for(self, session: str, name: str) -> str:
        return f"{session}-{self.placement.shard_of_name('lock', name):02}"


class ShardedHarness(_InShards):
    """A store of several shards, by its URL."""

    def __init__(
        self, url: str, face: str, placement: Placement, *, log_kept: int = 10_000
    ) -> None:
        super().__init__(url, face, Capabilities(), log_kept=log_kept)
        self.placement = placement


class SimulatedShards(_InShards, SimHarness):
    """Tables in memory on a simulated host, each of them a shard."""

    def __init__(self, placement: Placement, log_kept: int) -> None:
        SimHarness.__init__(self, seed=1, log_kept=log_kept)
        self.placement = placement
        host = self._host
        self._tables = [
            MemoryTable(host.now_ms, host.clock.wall_us, host.mutex())
            for _ in range(placement.shards)
        ]

    def store(self) -> Store:
        shards = [MemoryStore(table, self._host, self.url) for table in self._tables]
        return ShardedStore(self.url, self.placement, shards)
