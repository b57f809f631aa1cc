"""A client's access to a list of stores, each of which is one shard."""

from __future__ import annotations

from collections.abc import Sequence

from lockfast.core.placement import Placement
from lockfast.ports import Capabilities, Deliver, Store, WakeListener, Wire
from lockfast.stores.sharded.wire import ShardedWire


class ShardedStore:
    """Several stores as one; `placement` says which of them has which names."""

    def __init__(self, label: str, placement: Placement, shards: Sequence[Store]) -> None:
        assert len(shards) == placement.shards
        self.label = label
        self.placement = placement
        self._shards = shards

    @property
    def capabilities(self) -> Capabilities:
        return self._shards[0].capabilities

    def caller_wire(self) -> Wire:
        shards = self._shards
        return ShardedWire(self.label, self.placement, lambda shard: shards[shard].caller_wire())

    def keeper_wire(self) -> Wire:
        shards = self._shards
        return ShardedWire(self.label, self.placement, lambda shard: shards[shard].keeper_wire())

    def wake_listener(self, session: str, deliver: Deliver) -> WakeListener:
        shard = self._shards[self.placement.shard_of_session(session)]
        return shard.wake_listener(session, deliver)

    def close(self) -> None:
        for shard in self._shards:
            shard.close()
