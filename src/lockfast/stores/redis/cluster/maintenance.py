"""`lockfast doctor` and `lockfast reset` on a cluster: check every node, repair every shard."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from time import monotonic
from typing import Any

from lockfast.core.commands import Sessions
from lockfast.errors import StoreError
from lockfast.runtimes.threads import run
from lockfast.stores.diagnosis import Diagnosis, Maintenance
from lockfast.stores.redis.address import Server
from lockfast.stores.redis.cluster.links import BlockingLinks
from lockfast.stores.redis.cluster.topology import Cluster, Shard
from lockfast.stores.redis.connection import Connection, info_field
from lockfast.stores.redis.errors import translate
from lockfast.stores.redis.maintenance import TIMEOUT_S, RedisMaintenance
from lockfast.stores.redis.resp import pack
from lockfast.stores.redis.scripts import script_of


class ClusterMaintenance(Maintenance):
    def __init__(self, cluster: Cluster) -> None:
        super().__init__(cluster.label)
        self._cluster = cluster

    def examine(self) -> Iterator[Diagnosis]:
        with self._known():
            primaries = self._cluster.primaries()
            yield self._state(next(iter(primaries)))
            yield self._spread(primaries)
            yield self._layout()
            for server, shards in primaries.items():
                where = f"{server.host}:{server.port}"
                try:
                    for found in self._shard(shards[0]).examine():
                        yield _at(where, found)
                except StoreError as error:
                    yield Diagnosis(f"{where} server", error.what, "bad", error.advice)

    def repair(self) -> Iterator[Diagnosis]:
        with self._known():
            for number in range(self._cluster.placement.shards):
                for found in self._shard(number).repair():
                    yield _at(f"shard {number}", found)

    def reset(self) -> Iterator[Diagnosis]:
        with self._known():
            for number in range(self._cluster.placement.shards):
                for found in self._shard(number).reset():
                    yield _at(f"shard {number}", found)
            root = self._cluster.root
            self._ask(self._primary(root), pack("DEL", *root.protocol.keys))
            yield Diagnosis("layout", "forgot the number of shards and their placement")

    @contextmanager
    def _known(self) -> Iterator[None]:
        """Find the primaries of all shards. Raises StoreUnavailableError if one is unknown."""
        for shard in (self._cluster.root, *self._cluster.shards):
            self._primary(shard)
        yield

    def _primary(self, shard: Shard) -> Server:
        links = BlockingLinks(self._cluster)
        try:
            return run(self._cluster.primary(shard, links, monotonic() + TIMEOUT_S))
        finally:
            links.close()

    def _shard(self, number: int) -> RedisMaintenance:
        """Return the maintenance of one shard, on its primary."""
        shard = self._cluster.shards[number]
        address = self._cluster.address_of(self._primary(shard))
        return RedisMaintenance(address._replace(namespace=shard.namespace), in_cluster=True)

    def _state(self, server: Server) -> Diagnosis:
        info = str(self._ask(server, pack("CLUSTER", "INFO")))
        state = info_field(info, "cluster_state")
        found = (
            f"{state}, {info_field(info, 'cluster_size')} primaries of"
            f" {info_field(info, 'cluster_known_nodes')} nodes,"
            f" {info_field(info, 'cluster_slots_ok')} slots served"
        )
        if state != "ok":
            return Diagnosis("cluster", found, "bad", "check CLUSTER NODES and the nodes' logs")
        return Diagnosis("cluster", found)

    def _spread(self, primaries: dict[Server, list[int]]) -> Diagnosis:
        placement = self._cluster.placement
        on = ", ".join(
            f"{len(shards)} on {server.host}:{server.port}" for server, shards in primaries.items()
        )
        found = f"{placement.shards} by {placement.by}: {on}"
        if placement.shards < len(primaries) or max(map(len, primaries.values())) > 2 * min(
            map(len, primaries.values())
        ):
            return Diagnosis("shards", found, "note", "move slots so that nodes share the load")
        return Diagnosis("shards", found)

    def _layout(self) -> Diagnosis:
        """Check that the recorded layout of the namespace is that of the URL."""
        root, layout = self._cluster.root, self._cluster.address.layout
        keys = root.protocol.keys
        reading = pack("EVAL", script_of(Sessions, layout).body, len(keys), *keys, "", 1)
        reply = self._ask(self._primary(root), reading)
        if isinstance(reply, Exception):
            error = translate(str(reply), self.label)
            return Diagnosis("layout", error.what, "bad", error.advice)
        return Diagnosis("layout", "as in the store")

    def _ask(self, server: Server, packed: bytes) -> Any:
        until_s = monotonic() + TIMEOUT_S
        connection = Connection(self._cluster.address_of(server), until_s, checked=False)
        try:
            return connection.exchange(packed, until_s)
        finally:
            connection.close()


def _at(where: str, found: Diagnosis) -> Diagnosis:
    return found._replace(what=f"{where} {found.what}")
