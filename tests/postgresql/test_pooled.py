"""Behind a pooler nothing of a connection outlives a transaction.

PgBouncer itself is not started here: connections are told that they are pooled, which is what
they find out by comparing the process that greeted them with the one that answers.
"""

from __future__ import annotations

import threading
from typing import Any

import pytest

import lockfast
from lockfast.stores.postgresql.connection import Connection
from tests.servers.postgresql import PostgresServer


@pytest.fixture
def pooled(monkeypatch: pytest.MonkeyPatch) -> None:
    real = Connection.__init__

    def connect(connection: Connection, *arguments: Any) -> None:
        real(connection, *arguments)
        connection.is_pooled = True
        connection._prepared.clear()

    monkeypatch.setattr(Connection, "__init__", connect)


@pytest.mark.usefixtures("pooled")
def test_waiters_are_woken_by_their_keep_alives(server: PostgresServer) -> None:
    """Nobody listens, and no statement is prepared."""
    url = server.url()
    with lockfast.connect(url, ttl=6) as holder, lockfast.connect(url, ttl=6) as waiter:
        held = holder.lock("pooled").acquire()
        got: list[lockfast.Lease] = []
        thread = threading.Thread(
            target=lambda: got.append(waiter.lock("pooled").acquire(timeout=60))
        )
        thread.start()
        server.wait_until("SELECT count(*) = 1 FROM lockfast.lines WHERE name = 'pooled'")
        assert server.run("SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'LISTEN%'") == [
            (0,)
        ]
        held.release()
        thread.join(30)
        assert got
        assert got[0].token > held.token
        got[0].release()
