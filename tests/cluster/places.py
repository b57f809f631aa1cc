"""Which name is on which node."""

from __future__ import annotations

from lockfast.core.placement import Placement
from lockfast.stores.redis.cluster.slots import shard_namespaces, slot_of, tag_of
from tests.servers.redis_cluster import Node, RedisCluster
from tests.sharded.harness import name_in

SHARDS = 8
PLACEMENT = Placement(SHARDS)


def slot_of_shard(namespace: str, shard: int, shards: int = SHARDS) -> int:
    return slot_of(tag_of(shard_namespaces(namespace, shards)[shard]))


def slot_of_name(namespace: str, name: str) -> int:
    return slot_of_shard(namespace, PLACEMENT.shard_of_name("lock", name))


def name_on(cluster: RedisCluster, namespace: str, node: Node) -> str:
    """Return the name of a lock that a node serves."""
    for shard in range(SHARDS):
        if cluster.owner(slot_of_shard(namespace, shard)) is node:
            return name_in(PLACEMENT, shard, f"orders/{shard}")
    raise AssertionError("a node without a shard")
