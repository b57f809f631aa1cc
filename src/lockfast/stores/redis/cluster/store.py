"""The cluster as a store: wires over its shards, and one subscription for all wakes."""

from __future__ import annotations

import os
from collections.abc import Callable

from lockfast.ports import Capabilities, Deliver, WakeListener, Wire
from lockfast.stores.redis.cluster.links import BlockingLinks
from lockfast.stores.redis.cluster.subscription import ClusterWakeListener, Subscription
from lockfast.stores.redis.cluster.topology import Cluster, Links
from lockfast.stores.redis.cluster.wire import ShardWire
from lockfast.stores.sharded.wire import ShardedWire


class ClusterStore:
    """A client's connections to one namespace, for the blocking API."""

    capabilities = Capabilities()

    def __init__(self, cluster: Cluster) -> None:
        self.label = cluster.label
        self.placement = cluster.placement
        self._cluster = cluster
        self._keeper_links = BlockingLinks(cluster)
        self._links: list[Links] = [self._keeper_links]
        self._subscription: Subscription | None = None

    def caller_wire(self) -> Wire:
        links = self._caller_links()
        self._links.append(links)
        return self._wire(links, links.close)

    def keeper_wire(self) -> Wire:
        return self._wire(self._keeper_links)

    def _caller_links(self) -> Links:
        return BlockingLinks(self._cluster)

    def _wire(self, links: Links, on_close: Callable[[], None] = lambda: None) -> Wire:
        cluster = self._cluster
        return ShardedWire(
            self.label, self.placement, lambda shard: ShardWire(cluster, links, shard), on_close
        )

    def wake_listener(self, session: str, deliver: Deliver) -> WakeListener:
        subscription = self._subscription
        if subscription is None or subscription.process != os.getpid():
            # After a fork, the parent's thread does not exist in this process.
            subscription = self._subscription = Subscription(self._cluster)
        shard = self._cluster.shards[self.placement.shard_of_session(session)]
        return ClusterWakeListener(subscription, shard.protocol.address, session, deliver)

    def close(self) -> None:
        for links in self._links:
            links.close()
        if self._subscription is not None:
            self._subscription.close()
