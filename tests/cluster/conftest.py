"""Six nodes from the wheel, of which three are primaries."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

from tests.servers.redis_cluster import RedisCluster

_numbers = itertools.count(1)


@pytest.fixture(scope="session")
def cluster() -> Iterator[RedisCluster]:
    """A cluster that no test breaks; each test uses its own namespace."""
    with RedisCluster() as started:
        yield started


@pytest.fixture
def fragile() -> Iterator[RedisCluster]:
    """A cluster for tests that break it."""
    with RedisCluster() as started:
        yield started


@pytest.fixture
def namespace() -> str:
    """A new namespace."""
    return f"test-{next(_numbers)}"
