"""A Redis Cluster of three primaries against one of a single primary, on 10,000 names.

Clients and nodes share the cores of one machine, which limit the throughput. So the CPU time that
the busiest node spends on a pair is printed as well: with enough clients on other machines, it
limits the throughput of a cluster.
"""

from __future__ import annotations

import random
import threading
import time
from typing import NamedTuple

import lockfast
from tests.servers.redis_cluster import Node, RedisCluster

NAMES = 10_000
THREADS = 4
SHARDS = 24


class Load(NamedTuple):
    pairs_per_s: float
    busiest_us: float
    """CPU time of the busiest node per pair of the whole cluster."""


def run_cluster(seconds: float) -> None:
    """Print throughput and the busiest node's share, for one node and for three."""
    found = {nodes: _load(nodes, seconds) for nodes in (1, 3)}
    for nodes, load in found.items():
        print(
            f"{nodes} node{'s' if nodes > 1 else ' '}  {load.pairs_per_s:8.0f} pairs/s"
            f"  {load.busiest_us:6.1f} us of the busiest node per pair"
        )
    one, three = found[1], found[3]
    print(f"capacity of three nodes: {one.busiest_us / three.busiest_us:.2f} x that of one")


def _load(nodes: int, seconds: float) -> Load:
    with RedisCluster(nodes, 0) as cluster:
        url = cluster.url("bench", shards=SHARDS)
        with lockfast.connect(url, ttl=60) as client:
            for i in range(0, NAMES, NAMES // 200):  # open all sessions and connections
                client.lock(f"n/{i}").acquire().release()
            before = [_cpu_s(node) for node in cluster.nodes]
            counts = [0] * THREADS
            stop_s = time.monotonic() + seconds
            threads = [
                threading.Thread(target=_work, args=(client, counts, i, stop_s))
                for i in range(THREADS)
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            spent_s = [_cpu_s(n) - b for n, b in zip(cluster.nodes, before, strict=True)]
    pairs = sum(counts)
    return Load(pairs / seconds, max(spent_s) / pairs * 1e6)


def _work(client: lockfast.Client, counts: list[int], i: int, stop_s: float) -> None:
    chance = random.Random(i)
    while time.monotonic() < stop_s:
        with client.lock(f"n/{chance.randrange(NAMES)}"):
            counts[i] += 1


def _cpu_s(node: Node) -> float:
    return sum(float(node.field(f"used_cpu_{kind}", "cpu")) for kind in ("sys", "user"))
