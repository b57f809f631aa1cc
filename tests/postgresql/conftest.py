"""Every test of the PostgreSQL store runs against a real server."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.servers.postgresql import PostgresServer


@pytest.fixture(scope="session")
def server() -> Iterator[PostgresServer]:
    """A server that runs as long as the tests; each test uses its own namespace."""
    with PostgresServer() as started:
        yield started
