"""Open a Redis Cluster.

URLs: redis+cluster://, rediss+cluster://, valkey+cluster://, valkeys+cluster://, as
[user:password@]host[:port],host[:port],… of any nodes. Options: those of redis://, and
shards=16, shard_by=name|first-segment.
"""

from __future__ import annotations

from lockfast.errors import StoreMisconfiguredError
from lockfast.ports import Store
from lockfast.stores.diagnosis import Maintenance
from lockfast.stores.redis.address import PORT, common_address, credentials_in, servers_in
from lockfast.stores.redis.cluster.topology import Cluster
from lockfast.stores.redis.scripts import BY_FIRST_SEGMENT
from lockfast.stores.registry import Face, StoreUrl
from lockfast.stores.sharded import opening as sharded
from lockfast.stores.tls import tls_context

OPTIONS = ("eviction", "spin", "wait", "ca", "cert", "key", "verify", *sharded.OPTIONS)


def parse(url: StoreUrl) -> Cluster:
    """Return the cluster in a URL. Raises StoreMisconfiguredError if it is malformed."""
    url.refuse_other_options(*OPTIONS)
    placement = sharded.placement_in(url)
    credentials, _, hosts = url.location.rpartition("@")
    nodes = servers_in(hosts.removesuffix("/"), PORT)
    if nodes is None:
        raise StoreMisconfiguredError(
            url.label,
            "does not name nodes of a cluster",
            "write redis+cluster://host1:6379,host2:6379,host3:6379",
        )
    username, password = credentials_in(credentials, url)
    by_segment = BY_FIRST_SEGMENT if placement.by == sharded.BY_FIRST_SEGMENT else 0
    address = common_address(url)._replace(
        username=username,
        password=password,
        tls=tls_context(url, "rediss+cluster", "valkeys+cluster"),
        layout=placement.shards + by_segment,
    )
    return Cluster(address, nodes, placement)


def open_store(url: StoreUrl, face: Face, *, death_watch: bool = True) -> Store:
    """Open the store. `death_watch` has no effect: a server cannot observe client processes."""
    from lockfast.stores.redis.cluster.store import ClusterStore

    cluster = parse(url)
    if face == "asyncio":
        from lockfast.stores.redis.cluster.aio import AsyncClusterStore

        return AsyncClusterStore(cluster)
    return ClusterStore(cluster)


def open_maintenance(url: StoreUrl) -> Maintenance:
    """Return the maintenance of a namespace; does not connect yet."""
    from lockfast.stores.redis.cluster.maintenance import ClusterMaintenance

    return ClusterMaintenance(parse(url))
