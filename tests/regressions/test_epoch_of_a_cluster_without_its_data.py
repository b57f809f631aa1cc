"""Found by `./dev chaos --store etcd --fault wipe`: tokens went back on etcd.

A store identified the epoch of tokens, which it caches, by the revision that wrote it. In a cluster
that has lost its data the first session writes the epoch again at the same revision. So the
comparison held, and grants got tokens of the old epoch, lower than those that others had been
given.
"""

from __future__ import annotations

import asyncio

import lockfast
from lockfast import aio
from tests.servers.etcd import EtcdCluster

PATIENCE_S = 60.0


def lose_data(cluster: EtcdCluster) -> None:
    (member,) = cluster.members
    member.kill()
    member.wipe()
    member.start()
    cluster.until_ready()


def test_a_client_that_remembers_the_old_epoch_is_given_a_newer_token() -> None:
    with EtcdCluster(1) as cluster:
        url = cluster.url()
        with lockfast.connect(url, ttl=5) as old, lockfast.connect(url, ttl=5) as new:
            tokens = []
            for _ in range(3):
                with old.lock("a") as lease:
                    tokens.append(lease.token)
            held = old.lock("b").acquire()
            lose_data(cluster)
            assert held.lost.wait(PATIENCE_S)
            for client in (new, old):
                lease = client.lock("a").acquire(timeout=PATIENCE_S)
                tokens.append(lease.token)
                lease.release()
    assert tokens == sorted(set(tokens))


def test_the_same_on_asyncio() -> None:
    async def story(cluster: EtcdCluster) -> list[int]:
        url, tokens = cluster.url(), []
        async with aio.connect(url, ttl=5) as old, aio.connect(url, ttl=5) as new:
            for _ in range(3):
                async with old.lock("a") as lease:
                    tokens.append(lease.token)
            held = await old.lock("b").acquire()
            lose_data(cluster)
            assert await held.lost.wait(PATIENCE_S)
            for client in (new, old):
                lease = await client.lock("a").acquire(timeout=PATIENCE_S)
                tokens.append(lease.token)
                await lease.release()
        return tokens

    with EtcdCluster(1) as cluster:
        tokens = asyncio.run(story(cluster))
    assert tokens == sorted(set(tokens))
