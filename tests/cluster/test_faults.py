"""Nodes of a cluster that are killed, stopped or promoted while locks are held."""

from __future__ import annotations

import asyncio
import threading

import pytest

import lockfast
from lockfast import aio
from lockfast.errors import AcquireTimeoutError, LeaseLostError
from tests.cluster.places import SHARDS, name_on
from tests.servers.redis_cluster import Node, RedisCluster
from tests.servers.sentinel import wait_until

TTL = 20.0


def replica_of(cluster: RedisCluster, primary: Node) -> Node:
    for replica in cluster.replicas:
        if replica.field("master_port", "replication") == str(primary.port):
            return replica
    raise AssertionError("a primary without a replica")


def test_leases_survive_the_failover_of_their_primary(
    fragile: RedisCluster, namespace: str
) -> None:
    """The replica has session and claim: neither the holder nor clients of other shards notice."""
    url = fragile.url(namespace, shards=SHARDS)
    struck, other = fragile.primaries[:2]
    with lockfast.connect(url, ttl=TTL) as holder, lockfast.connect(url, ttl=TTL) as contender:
        here = holder.lock(name_on(fragile, namespace, struck)).acquire()
        there = holder.lock(name_on(fragile, namespace, other)).acquire()
        got: list[lockfast.Lease] = []
        waiting = threading.Thread(
            target=lambda: got.append(contender.lock(here.name).acquire(timeout=3 * TTL))
        )
        waiting.start()
        wait_until(lambda: holder.inspect(here.name).waiting_count == 1, "that it waits")
        struck.call("WAIT", 1, 5000)
        fragile.fail_over(struck)
        assert contender.lock(there.name).try_acquire() is None
        for lease in (here, there):
            lease.check()
            lease.release()
        waiting.join(3 * TTL)
        assert got[0].token > here.token
        got[0].release()


def test_a_task_goes_on_when_a_primary_is_stopped(fragile: RedisCluster, namespace: str) -> None:
    """No reply and no refusal: other nodes name the one that was promoted."""
    struck = fragile.primaries[0]

    async def story() -> None:
        async with aio.connect(fragile.url(namespace, shards=SHARDS), ttl=TTL) as client:
            name = name_on(fragile, namespace, struck)
            held = await client.lock(name).acquire()
            await asyncio.to_thread(struck.call, "WAIT", 1, 5000)
            with struck.stopped():
                await asyncio.to_thread(fragile.wait_for_failover, struck)
                held.check()
                assert await client.lock(name).try_acquire() is None
                await held.release()
                async with client.lock(name) as lease:
                    assert lease.token > held.token

    asyncio.run(story())


def test_a_grant_that_no_replica_has_is_told_and_fenced(
    fragile: RedisCluster, namespace: str
) -> None:
    url = fragile.url(namespace, shards=SHARDS)
    struck = fragile.primaries[0]
    name = name_on(fragile, namespace, struck)
    with lockfast.connect(url, ttl=TTL) as holder, lockfast.connect(url, ttl=TTL) as other:
        holder.lock(name).acquire().release()
        with replica_of(fragile, struck).stopped():
            # Otherwise the grant would wait for it in its socket buffer.
            struck.call("CLIENT", "KILL", "TYPE", "replica")
            held = holder.lock(name).acquire()
            struck.kill()
        fragile.wait_for_failover(struck)
        with other.lock(name).acquire(timeout=TTL) as lease:
            assert lease.token > held.token
        assert held.lost.wait(TTL)
        with pytest.raises(LeaseLostError):
            held.check()
        holder.lock(name).acquire(timeout=TTL).release()


def test_with_wait_such_a_grant_is_not_handed_out(fragile: RedisCluster, namespace: str) -> None:
    struck = fragile.primaries[0]
    name = name_on(fragile, namespace, struck)
    url = fragile.url(namespace, shards=SHARDS, wait=1)
    with lockfast.connect(url, ttl=TTL, connect_timeout=3) as client:
        client.lock(name).acquire().release()
        with replica_of(fragile, struck).stopped():
            with pytest.raises(lockfast.StoreError, match="replicas confirmed"):
                client.lock(name).acquire(timeout=2)
        client.lock(name).acquire(timeout=TTL).release()


def test_a_shard_that_is_down_costs_only_its_own_leases(
    fragile: RedisCluster, namespace: str
) -> None:
    """A primary and its replica are down; the remaining nodes keep serving their slots."""
    for node in fragile.nodes:
        node.call("CONFIG", "SET", "cluster-require-full-coverage", "no")
    struck, other = fragile.primaries[:2]
    names = [name_on(fragile, namespace, node) for node in (struck, other)]
    url = fragile.url(namespace, shards=SHARDS)
    with lockfast.connect(url, ttl=2) as client, lockfast.connect(url, connect_timeout=1) as late:
        here, there = (client.lock(name).acquire() for name in names)
        for node in (replica_of(fragile, struck), struck):
            node.kill()
        ends_at = here.deadline
        assert here.lost.wait(TTL)
        assert here.deadline <= ends_at + 2
        wait_until(lambda: there.deadline > ends_at + 2, "two keep-alives elsewhere")
        there.check()
        with pytest.raises(AcquireTimeoutError):
            late.lock(names[1]).acquire(timeout=0.1)
        there.release()
        late.lock(names[1]).acquire().release()
        with pytest.raises(lockfast.StoreUnavailableError):
            late.lock(names[0]).acquire()


def subscribed(node: Node) -> bool:
    """Return True if a client receives its wakes from this node."""
    lines = str(node.call("CLIENT", "LIST")).splitlines()
    return any("name=lockfast" in line and " sub=0 " not in line for line in lines)


def test_waiters_are_woken_although_the_subscribed_node_hangs(
    fragile: RedisCluster, namespace: str
) -> None:
    """One node delivers the wakes of all shards: when it stops, another takes over soon."""
    url = fragile.url(namespace, shards=SHARDS)
    with lockfast.connect(url, ttl=3600) as one, lockfast.connect(url, ttl=3600) as two:
        one.lock("warm").acquire().release()
        two.lock("warm").acquire().release()
        deaf = next(node for node in fragile.nodes if subscribed(node))
        served = next(node for node in fragile.primaries if node is not deaf)
        name = name_on(fragile, namespace, served)
        with deaf.stopped():
            held = one.lock(name).acquire()
            got: list[lockfast.Lease] = []
            waiting = threading.Thread(
                target=lambda: got.append(two.lock(name).acquire(timeout=60))
            )
            waiting.start()
            wait_until(lambda: one.inspect(name).waiting_count == 1, "that it waits")
            held.release()
            waiting.join(60)
            assert got, "with this TTL no keep-alive is due for twenty minutes"
            got[0].release()
