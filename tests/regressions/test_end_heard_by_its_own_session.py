"""A session revoked before its listener was open, or while it was disconnected, learned of it only
from its next keep-alive, a third of its TTL later."""

from __future__ import annotations

from collections.abc import Iterator
from time import monotonic

import pytest

import lockfast
from lockfast.core import commands as c
from lockfast.ports import WAKE_MISSED
from lockfast.runtimes.threads import run
from lockfast.stores.redis.address import parse
from lockfast.stores.redis.protocol import ScriptProtocol
from lockfast.stores.redis.wake_listener import RedisWakeListener
from lockfast.stores.redis.wire import BlockingWire
from lockfast.stores.registry import parse_url
from tests.servers.redis import RedisServer

PATIENCE_S = 30.0
TTL = 3600.0
"""So long that no keep-alive comes in time."""


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    with RedisServer() as started:
        yield started


def test_a_listener_that_has_connected_asks_for_a_check(server: RedisServer) -> None:
    address = parse(parse_url(server.url()))
    wire = BlockingWire(ScriptProtocol(address))
    listener = RedisWakeListener(address, "s", lambda wake: None)
    run(wire.send(c.Open("s", 60_000, "owner", inbox=listener.inbox), 5000))
    run(wire.send(c.RevokeSession("s", "admin", "enough"), 5000))
    assert [wake.what for wake in run(listener.listen(5000))] == [WAKE_MISSED]
    listener.close()
    wire.close()


def test_a_client_hears_at_once_that_it_revoked_itself(server: RedisServer) -> None:
    with lockfast.connect(server.url(), ttl=TTL) as client:
        lease = client.lock("orders/42").acquire()
        assert client.revoke(session=lease.session, reason="enough") == 1
        assert lease.lost.wait(PATIENCE_S)
        with pytest.raises(lockfast.LeaseLostError, match="enough"):
            lease.check()


def test_a_client_cut_off_meanwhile_hears_once_it_is_back(server: RedisServer) -> None:
    url = server.url()
    with lockfast.connect(url, ttl=TTL) as client, lockfast.connect(url) as other:
        lease = client.lock("orders/42").acquire()
        pubsub = "type", "pubsub"
        until_s = monotonic() + PATIENCE_S
        while not server.run("CLIENT", "LIST", *pubsub):
            assert monotonic() < until_s
        server.run("CLIENT", "KILL", *pubsub)
        other.revoke(session=lease.session, reason="enough")
        assert lease.lost.wait(PATIENCE_S)
