"""A client that is disconnected from ZooKeeper blocks neither its callers nor its keeper.

kazoo wakes its connection thread through a socket pair, with one byte per request, and a full pair
blocks: after 278 requests that could not be sent. Then an event loop stood still, a keeper no
longer noticed that its leases had expired, and a caller that was blocked while it recorded its
enter kept the connection thread from ever emptying the pair.
"""

from __future__ import annotations

import asyncio
import threading
from types import SimpleNamespace

import lockfast
import lockfast.aio
from lockfast.stores.registry import parse_url
from lockfast.stores.zookeeper.address import parse
from lockfast.stores.zookeeper.handler import DirectHandler
from tests.servers.proxy import Proxy
from tests.servers.zookeeper import ZooKeeperEnsemble

TTL_S = 5
OUTAGE_S = 30.0
REQUESTS = 400
"""More than a socket pair has room for."""


def test_nothing_blocks_while_no_server_is_reached() -> None:
    with ZooKeeperEnsemble() as node, Proxy(("127.0.0.1", node.members[0].port)) as proxy:
        asyncio.run(ask_in_vain(proxy))


async def ask_in_vain(proxy: Proxy) -> None:
    clock_s = asyncio.get_running_loop().time
    async with lockfast.aio.connect(f"zookeeper://{proxy.address}", ttl=TTL_S) as client:
        lease = await client.lock("held").acquire()
        proxy.refuse()
        proxy.reset()
        healing = threading.Timer(OUTAGE_S, proxy.heal)
        healing.start()
        started_s = clock_s()
        attempts = (client.lock(f"{i}").acquire(timeout=1) for i in range(REQUESTS))
        found = await asyncio.gather(*attempts, return_exceptions=True)
        assert all(isinstance(one, lockfast.LockfastError) for one in found)
        assert await lease.lost.wait(OUTAGE_S)
        assert clock_s() - started_s < OUTAGE_S
        healing.cancel()
        proxy.heal()


def test_requests_in_the_queue_count_and_not_bytes() -> None:
    handler, client = (
        DirectHandler(parse(parse_url("zookeeper://127.0.0.1"))),
        SimpleNamespace(_queue=[]),
    )
    handler.client = client
    reader, writer = handler.create_socket_pair()
    for _ in range(REQUESTS):
        client._queue.append("a request")
        writer.send(b"\0")
    client._queue.append("one whose sender was interrupted")
    while client._queue:
        assert handler.select([reader], [], [], 60)[0] == [reader]
        client._queue.pop()
        reader.recv(1)
    assert not handler.select([reader], [], [], 0)[0]
    reader.recv(1)  # as kazoo does if it finds nothing to send
    writer.send(b"\0")
    assert handler.select([reader], [], [], 60)[0] == [reader]
    writer.close()
    reader.close()
