"""The server loses data: tokens still rise, and the old holder is told.

Redis keeps G1 only as long as it keeps its data. Whatever it loses, a later grant has a higher
token, a keep-alive tells the old holder, and a guard refuses its writes.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import redis

import lockfast
from lockfast.errors import StaleTokenError
from lockfast.guards.redis import RedisGuard
from lockfast.stores.redis.scripts import keys_of
from tests.servers.ports import free_port
from tests.servers.redis import RedisServer

TTL = 3.0
PATIENCE_S = 30.0


def told_and_refused(
    old: lockfast.Lease, client: lockfast.Client, data: RedisServer, *, name: str = "orders/42"
) -> None:
    """Acquire the lock again: a higher token, the old holder told, its write refused."""
    new = client.lock(name, ttl=TTL).acquire(timeout=PATIENCE_S)
    assert new.token > old.token
    assert old.lost.wait(TTL), "the next keep-alive tells it, within a third of its TTL"
    with redis.Redis(unix_socket_path=str(data.socket)) as connection:
        guard = RedisGuard(connection)
        guard.set(name, new.token, "value", "of the new holder")
        with pytest.raises(StaleTokenError):
            guard.set(name, old.token, "value", "of the old holder")
        assert connection.get("value") == b"of the new holder"
    new.release()


def flush(server: RedisServer) -> None:
    server.run("FLUSHALL")


def kill(server: RedisServer) -> None:
    server.kill()
    server.start()


@pytest.mark.parametrize("lose", [flush, kill])
def test_all_is_lost(lose: Callable[[RedisServer], None], server: RedisServer) -> None:
    """FLUSHALL, and kill -9 without persistence."""
    with RedisServer(server.binary) as alone, RedisServer(server.binary) as data:
        url = alone.url("lost")
        with lockfast.connect(url) as holder, lockfast.connect(url) as other:
            earlier = [holder.lock("warm-up", ttl=TTL).acquire() for _ in range(1)]
            old = holder.lock("orders/42", ttl=TTL).acquire()
            assert old.token > earlier[0].token
            lose(alone)
            told_and_refused(old, other, data)
            assert earlier[0].lost.wait(TTL)


def test_a_replica_that_missed_the_last_claim_is_promoted(server: RedisServer) -> None:
    """It has the session but not the claim: count and checksum reveal that."""
    port = free_port()
    with (
        RedisServer(server.binary, port=port) as primary,
        RedisServer(server.binary) as replica,
        RedisServer(server.binary) as data,
    ):
        replica.run("REPLICAOF", "127.0.0.1", port)
        with lockfast.connect(primary.url("failover")) as holder:
            kept = holder.lock("kept", ttl=TTL).acquire()
            # Everything up to here reaches the replica, and nothing after it.
            while replica.run("HLEN", keys_of("failover")[0].decode()) < 4:
                pass
            assert primary.run("WAIT", 1, 10_000) == 1
            replica.run("REPLICAOF", "NO", "ONE")
            old = holder.lock("orders/42", ttl=TTL).acquire()
            # From now on the same address answers with the other data.
            primary.kill()
            primary.socket.unlink()
            primary.socket.symlink_to(replica.socket)
            with lockfast.connect(replica.url("failover")) as other:
                told_and_refused(old, other, data)
                assert kept.state == "held", "what the replica has goes on as if nothing was"
                kept.release()


def test_a_session_that_ended_does_not_come_back(server: RedisServer) -> None:
    with (
        lockfast.connect(server.url("ended")) as client,
        lockfast.connect(server.url("ended")) as admin,
    ):
        lease = client.lock("orders/42", ttl=TTL).acquire()
        assert admin.revoke(session=lease.session, reason="make room") == 1
        assert lease.lost.wait(PATIENCE_S)
        with client.lock("orders/42", ttl=TTL).acquire(timeout=PATIENCE_S) as anew:
            assert anew.session != lease.session
        ended = {info.session: info.ended for info in admin.sessions()}
        assert ended[lease.session] == "revoked: make room"
