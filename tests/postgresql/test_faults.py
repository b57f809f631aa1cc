"""A real server with injected faults: typed outcomes, no two holders, tokens never go back."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from time import monotonic

import pytest

import lockfast
from lockfast.core import commands as c
from lockfast.errors import (
    OutcomeUnknownError,
    StoreError,
    StoreUnavailableError,
)
from lockfast.runtimes.threads import run
from lockfast.stores.postgresql.address import parse
from lockfast.stores.postgresql.connection import Connection
from lockfast.stores.postgresql.store import PostgresStore
from lockfast.stores.registry import parse_url
from tests.postgresql.stepping import StoreSteps
from tests.servers.postgresql import PostgresServer

LOCK = (c.Place("lock", "orders/42", "exclusive"),)
WAIT_MS = 20_000


@pytest.fixture
def own_server() -> Iterator[PostgresServer]:
    """A server that the test may break."""
    with PostgresServer() as started:
        yield started


def store_at(url: str) -> PostgresStore:
    return PostgresStore(parse(parse_url(url)))


def holders(url: str) -> int:
    reply = run(store_at(url).caller_wire().send(c.Inspect("lock", "orders/42"), WAIT_MS))
    assert isinstance(reply, c.ResourceView)
    return reply.holder_count


@pytest.mark.parametrize("flight", range(6))
def test_a_backend_killed_before_any_flight_of_a_step(
    server: PostgresServer, monkeypatch: pytest.MonkeyPatch, flight: int
) -> None:
    """Whatever the store answers, sending the command again makes it exactly one claim."""
    url = server.url()
    store = store_at(url)
    wire = store.caller_wire()
    run(wire.send(c.Open("s", 60_000, "s"), WAIT_MS))
    # Two places and a block of tokens: the general path, with several requests.
    places = (*LOCK, c.Place("lock", "orders/43", "exclusive"))
    command = c.Enter("s", 1, places, block=10)
    sent = 0
    real = Connection.exchange

    def exchange(connection, statements, until_s):  # type: ignore[no-untyped-def]
        nonlocal sent
        if sent == flight:
            server.run(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE application_name = 'lockfast'"
            )
        sent += 1
        return real(connection, statements, until_s)

    monkeypatch.setattr(Connection, "exchange", exchange)
    try:
        run(wire.send(command, WAIT_MS))
    except (StoreUnavailableError, OutcomeUnknownError):
        pass
    monkeypatch.undo()
    granted = run(wire.send(command, WAIT_MS))
    assert isinstance(granted, c.Granted)
    assert holders(url) == 1
    again = run(wire.send(command, WAIT_MS))
    assert isinstance(again, c.Granted)
    assert again.token == granted.token
    store.close()


def test_a_killed_server_keeps_what_it_answered(own_server: PostgresServer) -> None:
    """After kill -9 and a restart the holder still holds, and the next token is greater."""
    url = own_server.url()
    with lockfast.connect(url, ttl=30) as client, lockfast.connect(url, ttl=30) as other:
        others = [client.lock(f"a/{i}").acquire() for i in range(5)]
        held = client.lock("orders/42").acquire()
        own_server.kill()
        with pytest.raises((StoreUnavailableError, OutcomeUnknownError)):
            other.lock("orders/42").acquire(timeout=0)
        own_server.start()
        assert other.lock("orders/42").try_acquire() is None
        held.check()
        held.release()
        with other.lock("orders/42").acquire(timeout=30) as lease:
            assert lease.token > held.token > max(one.token for one in others)
        for one in others:
            one.release()


def test_an_immediate_restart_wakes_waiters_all_the_same(own_server: PostgresServer) -> None:
    """Their notifications are lost with the connection: they listen again and read their claims."""
    url = own_server.url()
    with lockfast.connect(url, ttl=3) as client, lockfast.connect(url, ttl=3) as other:
        held = client.lock("orders/42").acquire()
        got: list[lockfast.Lease] = []
        waiter = threading.Thread(
            target=lambda: got.append(other.lock("orders/42").acquire(timeout=60))
        )
        waiter.start()
        own_server.wait_until("SELECT count(*) = 1 FROM lockfast.lines")
        own_server.restart_immediately()
        held.release()
        waiter.join(60)
        assert got
        assert got[0].token > held.token
        got[0].release()


def test_out_of_connections_is_unavailable(own_server: PostgresServer) -> None:
    own_server.run("CREATE ROLE few LOGIN SUPERUSER CONNECTION LIMIT 0")
    own_server.run("ALTER ROLE few NOSUPERUSER")
    url = own_server.url(user="few")
    with pytest.raises(StoreUnavailableError, match="no connection left"):
        run(store_at(url).caller_wire().send(c.Open("s", 1000, "s"), WAIT_MS))


def test_a_statement_timeout_is_unavailable_and_nothing_was_done(server: PostgresServer) -> None:
    """Another transaction keeps the resource locked for longer than the server allows."""
    url = server.url()
    server.run("CREATE ROLE hasty LOGIN SUPERUSER")
    server.run("ALTER ROLE hasty SET statement_timeout = '200ms'")
    wire = store_at(url.replace("postgres@", "hasty@")).caller_wire()
    run(wire.send(c.Open("s", 60_000, "s"), WAIT_MS))
    namespace = parse(parse_url(url)).namespace
    with server.connect() as stuck, stuck.transaction():
        stuck.execute(
            "SELECT pg_advisory_xact_lock(lockfast.resource_key(%s, 'lock', 'orders/42'))",
            [namespace],
        )
        with pytest.raises(StoreUnavailableError, match="statement_timeout"):
            run(wire.send(c.Enter("s", 1, LOCK), WAIT_MS))
    assert isinstance(run(wire.send(c.Enter("s", 1, LOCK), WAIT_MS)), c.Granted)


def test_a_client_stopped_inside_a_step_loses_its_locks(server: PostgresServer) -> None:
    """The server ends its transaction (idle_in_transaction_session_timeout): others continue."""
    url = server.url()
    store = store_at(url)
    wire = store.caller_wire()
    run(wire.send(c.Open("s", 60_000, "s"), WAIT_MS))
    namespace = store.server.address.namespace
    stuck = store.server.connect(monotonic() + 10)
    step = "SELECT * FROM lockfast.begin_step($1, false, '[]', '[]', $2, '[]', false, NULL)"
    resource = '[["lock", "orders/42"]]'
    stuck.exchange([("BEGIN", ()), (step, [namespace, resource])], monotonic() + 10)
    with pytest.raises(StoreError):
        run(wire.send(c.Enter("s", 1, LOCK), 1000))
    # It never sends anything again: after 5 s the server releases its locks.
    granted = None
    until_s = monotonic() + 30
    while granted is None and monotonic() < until_s:
        try:
            granted = run(wire.send(c.Enter("s", 1, LOCK), 10_000))
        except StoreError:
            continue
    assert isinstance(granted, c.Granted)
    stuck.close()


def test_a_stopped_server_is_told_from_a_refusal(own_server: PostgresServer) -> None:
    """A step without a reply may have been executed; repeating it still makes one claim."""
    url = own_server.url()
    wire = store_at(url).caller_wire()
    run(wire.send(c.Open("s", 60_000, "s"), WAIT_MS))
    with own_server.stopped(), pytest.raises(OutcomeUnknownError):
        run(wire.send(c.Enter("s", 1, LOCK), 300))
    assert isinstance(run(wire.send(c.Enter("s", 1, LOCK), WAIT_MS)), c.Granted)
    assert holders(url) == 1


def test_a_standby_takes_no_writes_and_a_promoted_one_gives_greater_tokens() -> None:
    """Failover to a standby that missed the last grants: tokens still rise."""
    with PostgresServer() as primary:
        url = primary.url()
        wire = store_at(url).caller_wire()
        run(wire.send(c.Open("s", 600_000, "s"), WAIT_MS))
        with PostgresServer(primary=primary) as standby:
            behind = url.replace(str(primary.port), str(standby.port))
            standby.wait_until("SELECT count(*) = 1 FROM lockfast.sessions")
            with pytest.raises(StoreUnavailableError, match="standby"):
                run(store_at(behind).caller_wire().send(c.Enter("s", 1, LOCK), WAIT_MS))
            # From here on the standby misses what the primary grants.
            standby.run("ALTER SYSTEM SET primary_conninfo = ''")
            standby.run("SELECT pg_reload_conf()")
            standby.wait_until("SELECT count(*) = 0 FROM pg_stat_wal_receiver")
            tokens = []
            for n in range(1, 60):
                granted = run(wire.send(c.Enter("s", n, LOCK), WAIT_MS))
                assert isinstance(granted, c.Granted)
                tokens.append(granted.token)
                run(wire.send(c.Leave("s", n, LOCK), WAIT_MS))
            primary.kill()
            standby.promote()
            # Of a session that it knows, so that only the timeline differs.
            granted = run(store_at(behind).caller_wire().send(c.Enter("s", 1, LOCK), WAIT_MS))
            assert isinstance(granted, c.Granted)
            assert granted.token > max(tokens)


COMMANDS: dict[str, c.Command] = {
    "enter": c.Enter("s", 2, (c.Place("lock", "free", "exclusive"),)),
    "enter and wait": c.Enter("other", 1, LOCK),
    "leave": c.Leave("s", 1, LOCK),
    "renew": c.Renew("s", 1, 0, 1, ()),
    "convert": c.Convert("s", 1, 1, "shared"),
    "several at once": c.Enter("s", 3, (c.Place("lock", "a", "shared"), *LOCK)),
    "revoke": c.Revoke("s", 1, "because", "an operator"),
    "close": c.Close("s"),
}


@pytest.mark.parametrize("name", COMMANDS)
def test_a_backend_killed_in_the_middle_of_a_step(server: PostgresServer, name: str) -> None:
    """It waits for a lock that another holds; after its death the command works as if new."""
    url = server.url()
    store = store_at(url)
    wire = store.caller_wire()
    for session in ("s", "other"):
        run(wire.send(c.Open(session, 60_000, session), WAIT_MS))
    held = run(wire.send(c.Enter("s", 1, LOCK), WAIT_MS))
    assert isinstance(held, c.Granted)
    command = COMMANDS[name]
    before = rows_of(url)
    outcome: list[object] = []

    def send() -> None:
        try:
            outcome.append(run(wire.send(command, WAIT_MS)))
        except StoreError as error:
            outcome.append(error)

    with server.connect() as gatekeeper, gatekeeper.transaction():
        gatekeeper.execute("SELECT pg_advisory_xact_lock(lockfast.gate_key())")
        thread = threading.Thread(target=send)
        thread.start()
        waiting = (
            "SELECT pid FROM pg_stat_activity WHERE application_name = 'lockfast'"
            " AND wait_event_type = 'Lock' AND wait_event = 'advisory'"
        )
        server.wait_until(f"SELECT EXISTS ({waiting})")
        server.run(f"SELECT pg_terminate_backend(pid) FROM ({waiting}) w")
        thread.join(30)
    assert isinstance(outcome[0], StoreUnavailableError | OutcomeUnknownError)
    assert rows_of(url) == before
    reply = run(wire.send(command, WAIT_MS))
    assert not isinstance(reply, c.Refused | c.Ended)
    assert holders(url) <= 1
    store.close()


def rows_of(url: str) -> object:
    with contextlib.closing(StoreSteps(url, watched=False)) as steps:
        return sorted(steps.dump(), key=str)


def test_a_failover_to_a_lagging_standby_is_told_and_fenced() -> None:
    """The standby lacks the last grant: another client is granted the lock, with a greater token,
    and the first holder learns of its loss from its next keep-alive."""
    with PostgresServer() as primary:
        with lockfast.connect(primary.url("one"), ttl=30) as client:
            client.lock("first").acquire().release()
        with PostgresServer(primary=primary) as standby:
            url = primary.url("one").replace(
                f":{primary.port}", f":{primary.port},127.0.0.1:{standby.port}"
            )
            standby.wait_until("SELECT count(*) > 0 FROM lockfast.sessions")
            standby.run("ALTER SYSTEM SET primary_conninfo = ''")
            standby.run("SELECT pg_reload_conf()")
            standby.wait_until("SELECT count(*) = 0 FROM pg_stat_wal_receiver")
            with lockfast.connect(url, ttl=6) as holder, lockfast.connect(url, ttl=6) as other:
                held = holder.lock("orders/42").acquire()
                assert other.lock("orders/42").try_acquire() is None
                primary.kill()
                standby.promote()
                with other.lock("orders/42").acquire(timeout=30) as lease:
                    assert lease.token > held.token
                    assert held.lost.wait(6)
                with pytest.raises(lockfast.LeaseLostError):
                    held.check()
                with holder.lock("orders/42").acquire(timeout=30) as again:
                    assert again.token > lease.token
