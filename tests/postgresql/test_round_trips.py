"""What an acquire and a release send to the server, by the server's own log."""

from __future__ import annotations

from bench.postgresql import count_statements
from tests.servers.postgresql import PostgresServer


def test_an_acquire_and_a_release_are_one_statement_each() -> None:
    with PostgresServer() as server:
        assert count_statements(server, pairs=20) == 2
