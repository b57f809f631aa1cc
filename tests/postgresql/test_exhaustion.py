"""A server that runs out of disk, connections or time: outcomes are typed, and leases stay."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

import lockfast
from lockfast.errors import StoreError, StoreUnavailableError
from lockfast.stores.postgresql.opening import open_maintenance
from lockfast.stores.registry import parse_url
from tests.servers.postgresql import PostgresServer, as_server_user

TTL = 60.0
LONG = "x" * 500
"""The server extends tables by many pages at a time: long names fill them quickly."""
SEGMENT = 16 * 1024 * 1024
"""The size of a WAL file: a smaller limit would stop the whole server, as a full disk does."""


@contextlib.contextmanager
def no_file_beyond(server: PostgresServer, size: int) -> Iterator[None]:
    """Prevent every process of the server from writing to a file beyond this size."""

    def limit(size: str) -> None:
        children = Path(f"/proc/{server.pid}/task/{server.pid}/children").read_text().split()
        for pid in (str(server.pid), *children):
            # As its own user: only that one may limit a process.
            command = ["prlimit", "--pid", pid, f"--fsize={size}:unlimited"]
            subprocess.run(command, check=False, capture_output=True, **as_server_user())

    limit(str(size))
    try:
        yield
    finally:
        limit("unlimited")


def test_a_full_disk_refuses_new_claims_and_keeps_the_held() -> None:
    """The table of claims cannot grow; held locks stay held and can be released."""
    with PostgresServer() as server:
        url = server.url("one")
        with lockfast.connect(url, ttl=TTL) as holder, lockfast.connect(url, ttl=TTL) as other:
            held = holder.lock("orders/42").acquire()
            server.run(
                "INSERT INTO lockfast.claims SELECT 'filler', 's', i, repeat('x', 1800),"
                " 'finished', '', '', 0, 0, 0, 0, 0, 0, 0, 1, NULL, 0, 0, '', '', '', 0, 0"
                " FROM generate_series(1, 9000) i"
            )
            server.run("CHECKPOINT")
            taken: list[lockfast.Lease] = []
            with no_file_beyond(server, SEGMENT):
                with pytest.raises(StoreUnavailableError, match=r"disk|files"):
                    for i in range(1000):
                        taken.append(other.lock(f"{i}/{LONG}").acquire(timeout=0))
                assert other.lock("orders/42").try_acquire() is None
                held.check()
            for lease in (held, *taken):
                lease.check()
                lease.release()
            with other.lock("orders/42").acquire(timeout=TTL) as lease:
                assert lease.token > max(one.token for one in (held, *taken))
        found = {row.what: row.verdict for row in open_maintenance(parse_url(url)).examine()}
        assert found["rows"] == "good"


HELD_MAX = 5
"""The observer's connection, and those of a client that holds a lock: caller, keeper, listener."""


def connections(observer: psycopg.Connection[Any]) -> int:
    ((count,),) = observer.execute(
        "SELECT count(*) FROM pg_stat_activity, pg_sleep(0.01)"
        " WHERE backend_type = 'client backend'"
    )
    return int(count)


def test_a_server_without_free_connections_keeps_those_it_has() -> None:
    """New clients get a typed error; the holder's own connections continue."""
    with PostgresServer("max_connections=14", "superuser_reserved_connections=0",
                        "max_wal_senders=0") as server:  # fmt: skip
        server.run("CREATE ROLE app LOGIN SUPERUSER")
        url = server.url("one", user="app")
        with lockfast.connect(url, ttl=3) as holder, server.connect() as observer:
            observer.autocommit = True
            held = holder.lock("orders/42").acquire()
            with contextlib.ExitStack() as crowd:
                with pytest.raises(Exception, match=r"too many clients|connection slots"):
                    while True:
                        crowd.enter_context(server.connect())
                with lockfast.connect(url, ttl=3, connect_timeout=1) as late:
                    with pytest.raises(StoreUnavailableError, match="no connection left"):
                        late.lock("orders/42").acquire()
                assert not held.lost.wait(4)  # longer than its TTL
                held.check()
            while connections(observer) > HELD_MAX:  # backends end after their connections
                pass
            with lockfast.connect(url, ttl=3) as late:
                assert late.lock("orders/42").try_acquire() is None
                held.release()
                late.lock("orders/42").acquire(timeout=TTL).release()


def test_a_read_only_server_is_told_from_a_broken_one(server: PostgresServer) -> None:
    with lockfast.connect(server.url()) as client:
        client.lock("first").acquire().release()
    server.run("CREATE ROLE reading LOGIN SUPERUSER")
    server.run("ALTER ROLE reading SET default_transaction_read_only = on")
    with lockfast.connect(server.url(user="reading"), connect_timeout=0.5) as client:
        # The last attempt may have too little time for a reply, and then also says so.
        with pytest.raises(StoreError, match="take writes"):
            client.lock("orders/42").acquire()
