"""Notifications: only for other clients' claims, and trusted only with their secret."""

from __future__ import annotations

import threading

import psycopg

import lockfast
from lockfast.core import commands as c
from lockfast.core.commands import Wake
from lockfast.runtimes.threads import run
from lockfast.stores.postgresql.address import parse
from lockfast.stores.postgresql.store import PostgresStore
from lockfast.stores.registry import parse_url
from tests.servers.postgresql import PostgresServer

LOCK = (c.Place("lock", "a", "exclusive"),)
WAIT_MS = 20_000


def test_a_forged_notification_is_not_believed(server: PostgresServer) -> None:
    """A client that knows the channel but not the secret cannot forge a grant."""
    store = PostgresStore(parse(parse_url(server.url())))
    believed: list[Wake] = []
    listener = store.wake_listener("s", believed.append)
    run(listener.listen(1000))  # it listens from now on
    channel, secret = listener.inbox.split(" ")
    with server.connect() as forger:
        forger.execute("SELECT pg_notify(%s, 'guessed s 1 granted 17')", [channel])
        forger.execute("SELECT pg_notify(%s, 'nonsense')", [channel])
        forger.execute("SELECT pg_notify(%s, %s)", [channel, f"{secret} s 0 look 0"])
    heard = list(run(listener.listen(WAIT_MS)))
    assert [wake.what for wake in heard] == ["look"]
    assert believed == []
    listener.close()
    store.close()


def test_an_uncontended_lock_notifies_nobody(server: PostgresServer) -> None:
    """A commit with a notification waits for all others of the server."""
    with psycopg.connect(server.conninfo(), autocommit=True) as spy:
        url = server.url()
        with lockfast.connect(url) as client:
            with client.lock("before"):
                pass
            ((channel,),) = server.run(
                "SELECT split_part(inbox, ' ', 1) FROM lockfast.sessions WHERE namespace = %s",
                parse(parse_url(url)).namespace,
            )
            spy.execute(f'LISTEN "{channel}"')
            for i in range(20):
                with client.lock(f"orders/{i}"):
                    pass
            assert list(spy.notifies(timeout=0)) == []


def test_a_waiter_of_another_client_is_woken(server: PostgresServer) -> None:
    """Long before its keep-alive: the TTL is a minute."""
    url = server.url()
    with lockfast.connect(url, ttl=60) as holder, lockfast.connect(url, ttl=60) as waiter:
        held = holder.lock("a").acquire()
        got: list[lockfast.Lease] = []
        thread = threading.Thread(target=lambda: got.append(waiter.lock("a").acquire(timeout=60)))
        thread.start()
        namespace = parse(parse_url(url)).namespace
        server.wait_until("SELECT count(*) = 1 FROM lockfast.lines WHERE namespace = %s", namespace)
        held.release()
        thread.join(15)
        assert got, "woken by the keep-alive only, or not at all"
        got[0].release()


def test_a_killed_listener_listens_again(server: PostgresServer) -> None:
    store = PostgresStore(parse(parse_url(server.url())))
    believed: list[Wake] = []
    listener = store.wake_listener("s", believed.append)
    run(listener.listen(1000))
    channel, secret = listener.inbox.split(" ")
    server.run(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query LIKE %s",
        f"LISTEN%{channel}%",
    )
    looked: list[str] = []
    while not looked:  # it notices, reconnects, and reads what it has missed
        looked = [wake.what for wake in run(listener.listen(2000))]
    assert looked == ["missed"]
    server.run("SELECT pg_notify(%s, %s)", channel, f"{secret} s 1 granted 17")
    while not believed:
        run(listener.listen(2000))
    assert believed[0].token == 17
    listener.close()
    store.close()
