"""A Redis Cluster from the wheel: primaries, replicas, and operations on them."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any, Final, Self

from lockfast.stores.redis.cluster.slots import SLOTS
from tests.servers.ports import free_port
from tests.servers.redis import RedisServer
from tests.servers.sentinel import wait_until

NODE_TIMEOUT_MS: Final = 1000
BUS: Final = 10_000
"""The difference between the port of the cluster bus and the port for clients."""


class Node(RedisServer):
    """One node; it keeps its name and its slots when it is restarted."""

    def __init__(self, *config: str, announced: int = 0) -> None:
        """Create a node; `announced` is the port announced to others, if not the node's own."""
        port = free_port(beside=BUS)
        if announced:
            config += ("--cluster-announce-port", str(announced))
            config += ("--cluster-announce-bus-port", str(port + BUS))
        super().__init__(
            None,
            *("--cluster-enabled", "yes", "--cluster-config-file", "nodes.conf"),
            *("--cluster-node-timeout", str(NODE_TIMEOUT_MS)),
            # Promote a replica however old its copy is: tests want a failover.
            *("--cluster-replica-validity-factor", "0"),
            *config,
            port=port,
        )

    def call(self, *arguments: str | int) -> Any:
        return self.run(*arguments)

    @property
    def id(self) -> str:
        return str(self.call("CLUSTER", "MYID"))

    def field(self, name: str, section: str = "") -> str:
        """Return one value of CLUSTER INFO, or of a section of INFO."""
        info = self.call("INFO", section) if section else self.call("CLUSTER", "INFO")
        for line in str(info).splitlines():
            if line.startswith(f"{name}:"):
                return line.partition(":")[2]
        return ""


class RedisCluster:
    """`primaries` nodes with equal ranges of slots, and `replicas` of each."""

    def __init__(
        self, primaries: int = 3, replicas: int = 1, *, announced: Sequence[int] = ()
    ) -> None:
        self._stack = contextlib.ExitStack()
        ports = iter(announced)
        count = primaries * (1 + replicas)
        self.nodes = [Node(announced=next(ports, 0)) for _ in range(count)]
        self.primaries, self.replicas = self.nodes[:primaries], self.nodes[primaries:]

    def __enter__(self) -> Self:
        try:
            for node in self.nodes:
                self._stack.enter_context(node)
            self._assign()
            self._meet()
            wait_until(self.is_ok, "that all nodes see the cluster")
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def _assign(self) -> None:
        count = len(self.primaries)
        for i, node in enumerate(self.primaries):
            node.call("CLUSTER", "SET-CONFIG-EPOCH", i + 1)
            slots = range(i * SLOTS // count, (i + 1) * SLOTS // count)
            node.call("CLUSTER", "ADDSLOTS", *slots)

    def _meet(self) -> None:
        first = self.nodes[0]
        for node in self.nodes[1:]:
            node.call("CLUSTER", "MEET", "127.0.0.1", first.port)
        everybody = str(len(self.nodes))
        wait_until(
            lambda: all(node.field("cluster_known_nodes") == everybody for node in self.nodes),
            "that all nodes meet",
        )
        for i, replica in enumerate(self.replicas):
            replica.call("CLUSTER", "REPLICATE", self.primaries[i % len(self.primaries)].id)

    def is_ok(self) -> bool:
        """Return whether every running node sees all slots served, and each replica is in sync."""
        running = [node for node in self.nodes if node.is_running()]
        return all(node.field("cluster_state") == "ok" for node in running) and all(
            node.field("role", "replication") == "master"
            or node.field("master_link_status", "replication") == "up"
            for node in running
        )

    def url(self, namespace: str, credentials: str = "", **options: str | int) -> str:
        hosts = ",".join(f"127.0.0.1:{node.port}" for node in self.primaries)
        query = "&".join(
            f"{name}={value}" for name, value in {"namespace": namespace, **options}.items()
        )
        return f"redis+cluster://{credentials}{hosts}?{query}"

    # ── what operators and accidents do ──────────────────────────────────────────────

    def masters(self) -> list[Node]:
        """Return the nodes that are primaries now, after any failovers."""
        running = [node for node in self.nodes if node.is_running()]
        return [node for node in running if node.field("role", "replication") == "master"]

    def owner(self, slot: int) -> Node:
        """Return the node that claims to be the primary of a slot."""
        for node in self.masters():
            for line in str(node.call("CLUSTER", "NODES")).splitlines():
                if "myself" in line and _serves(line.split()[8:], slot):
                    return node
        raise AssertionError(f"no node serves slot {slot}")

    def fail_over(self, node: Node) -> None:
        """Kill a primary and wait until a replica has taken over its slots."""
        node.kill()
        self.wait_for_failover(node)

    def wait_for_failover(self, lost: RedisServer) -> None:
        others = [node for node in self.nodes if node is not lost and node.is_running()]
        wait_until(
            lambda: (
                sum(n.field("role", "replication") == "master" for n in others)
                == len(self.primaries)
                and all(n.field("cluster_state") == "ok" for n in others)
            ),
            "a failover",
        )

    def move_slot(self, slot: int, source: Node, target: Node, *, halfway: Any = None) -> int:
        """Move a slot as `redis-cli --cluster reshard` does; return the number of keys moved.

        `halfway` is called after each key.
        """
        target.call("CLUSTER", "SETSLOT", slot, "IMPORTING", source.id)
        source.call("CLUSTER", "SETSLOT", slot, "MIGRATING", target.id)
        moved = 0
        while keys := source.call("CLUSTER", "GETKEYSINSLOT", slot, 1):
            source.call("MIGRATE", "127.0.0.1", target.port, keys[0], 0, 5000)
            moved += 1
            if halfway is not None:
                halfway(moved)
        others = [node for node in self.masters() if node not in (target, source)]
        for node in (target, source, *others):
            node.call("CLUSTER", "SETSLOT", slot, "NODE", target.id)
        return moved


def _serves(ranges: list[str], slot: int) -> bool:
    for each in ranges:
        first, _, last = each.partition("-")
        if first.isdecimal() and int(first) <= slot <= int(last or first):
            return True
    return False
