"""Every test of the Redis store runs against each available server."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.servers.redis import RedisServer, binaries


@pytest.fixture(scope="session", params=binaries())
def server(request: pytest.FixtureRequest) -> Iterator[RedisServer]:
    """A server that runs as long as the tests; each test uses its own namespace."""
    with RedisServer(binaries()[request.param]) as started:
        yield started
