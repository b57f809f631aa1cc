"""The integrations run in their real frameworks, most of them on a real Redis."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.servers.redis import RedisServer


@pytest.fixture(scope="session")
def redis() -> Iterator[RedisServer]:
    with RedisServer() as started:
        yield started
