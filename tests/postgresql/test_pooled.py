"""Behind a pooler in transaction mode no state of a connection outlives a transaction.

Each test runs behind a real PgBouncer, if one is available, and behind a pooler of our own that
also discards everything after each transaction; the store contract runs behind one of them. All
clients share two server connections.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator

import pytest

import lockfast
from lockfast import aio
from lockfast.conformance.contract import WireContract
from lockfast.conformance.harness import Harness
from lockfast.stores.postgresql.opening import open_maintenance
from lockfast.stores.postgresql.rows import LOG_KEPT
from lockfast.stores.postgresql.store import PostgresStore
from lockfast.stores.registry import parse_url
from tests.servers import pgbouncer
from tests.servers.pooler import TransactionPooler
from tests.servers.postgresql import PostgresServer

POOLERS: dict[str, type[TransactionPooler | pgbouncer.PgBouncer]] = {
    "pooler": TransactionPooler,
    "pgbouncer": pgbouncer.PgBouncer,
}


@pytest.fixture(scope="module", params=POOLERS)
def port(request: pytest.FixtureRequest, server: PostgresServer) -> Iterator[int]:
    """Return the pooler's port."""
    if request.param == "pgbouncer" and pgbouncer.program() is None:
        pytest.skip("no PgBouncer on the PATH, and Debian's packages cannot be downloaded")
    with POOLERS[request.param](server.port) as started:
        yield started.port


@pytest.fixture(scope="module")
def best_port(server: PostgresServer) -> Iterator[int]:
    """Return the port of a PgBouncer if there is one, else of our own pooler."""
    best = "pooler" if pgbouncer.program() is None else "pgbouncer"
    with POOLERS[best](server.port) as started:
        yield started.port


def through(server: PostgresServer, port: int, **options: str) -> str:
    return server.url(**options).replace(f":{server.port}/", f":{port}/")


def direct(server: PostgresServer) -> str:
    return f"127.0.0.1:{server.port}"


class TestWire(WireContract):
    @pytest.fixture
    def harness(self, server: PostgresServer, best_port: int) -> Harness:
        url = through(server, best_port, listen=direct(server))
        return Harness(url, "threads", PostgresStore.capabilities, log_kept=LOG_KEPT)


def handed_over(server: PostgresServer, url: str, *, ttl: float) -> tuple[int, int]:
    """Return the tokens before and after a hand-over between two clients."""
    with lockfast.connect(url, ttl=ttl) as holder, lockfast.connect(url, ttl=ttl) as waiter:
        held = holder.lock("pooled").acquire()
        got: list[lockfast.Lease] = []
        thread = threading.Thread(
            target=lambda: got.append(waiter.lock("pooled").acquire(timeout=60))
        )
        thread.start()
        server.wait_until("SELECT count(*) = 1 FROM lockfast.lines WHERE name = 'pooled'")
        held.release()
        thread.join(30)
        assert got, "the waiter was not woken"
        got[0].release()
        return held.token, got[0].token


def test_without_listen_waiters_are_woken_by_their_keep_alives(
    server: PostgresServer, port: int, caplog: pytest.LogCaptureFixture
) -> None:
    """A keep-alive is due every two seconds; the log says what is missing."""
    before, after = handed_over(server, through(server, port), ttl=6)
    assert after > before
    assert "a connection pooler stands in between" in caplog.text
    assert server.run("SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'LISTEN%'") == [(0,)]


def test_with_listen_waiters_are_woken_at_once(server: PostgresServer, port: int) -> None:
    """Long before their keep-alives, which are twenty seconds apart."""
    url = through(server, port, listen=direct(server))
    before, after = handed_over(server, url, ttl=120)
    assert after > before


def test_a_listen_address_that_is_a_pooler_too_is_noticed(
    server: PostgresServer, port: int, caplog: pytest.LogCaptureFixture
) -> None:
    handed_over(server, through(server, port, listen=f"127.0.0.1:{port}"), ttl=6)
    assert "a connection pooler stands in between" in caplog.text


def test_the_same_under_asyncio(server: PostgresServer, port: int) -> None:
    async def story() -> None:
        url = through(server, port, listen=direct(server))
        async with aio.connect(url, ttl=60) as one, aio.connect(url, ttl=60) as other:
            async with one.lock("pooled") as lease:
                waiting = asyncio.create_task(other.lock("pooled").acquire(timeout=60))
                while (await one.inspect("pooled")).waiting_count == 0:
                    await asyncio.sleep(0.01)
            got = await asyncio.wait_for(waiting, 15)
            assert got.token > lease.token
            await got.release()

    asyncio.run(story())


def test_many_clients_share_two_server_connections(server: PostgresServer, port: int) -> None:
    """Sixteen threads take crossing locks; settings of one never reach another."""
    url = through(server, port, listen=direct(server))
    failures: list[BaseException] = []

    def use(i: int) -> None:
        try:
            with lockfast.connect(url, ttl=60) as client:
                for k in range(6):
                    with client.lock("common"), client.all(f"a/{i % 4}", f"a/{k % 4}"):
                        pass
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=use, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert not failures
    ((kept,),) = server.run(
        "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'lockfast'"
        " AND state = 'idle in transaction'"
    )
    assert kept == 0


def test_doctor_reports_the_pooler(server: PostgresServer, port: int) -> None:
    with lockfast.connect(through(server, port, listen="off")) as client:
        client.lock("a").acquire().release()

    def found(url: str) -> tuple[str, str]:
        for diagnosis in open_maintenance(parse_url(url)).examine():
            if diagnosis.what == "pooler":
                return diagnosis.verdict, diagnosis.advice
        raise AssertionError("not examined")

    verdict, advice = found(through(server, port))
    assert verdict == "note"
    assert "?listen=" in advice
    assert found(through(server, port, listen=direct(server)))[0] == "good"
    assert found(server.url())[0] == "good"
