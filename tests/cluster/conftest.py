"""Six nodes from the wheel, of which three are primaries."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

from tests.servers.redis_cluster import RedisCluster

_numbers = itertools.count(1)


@pytest.fixture(scope="session")
def cluster() -> Iterator[RedisCluster]:
    """One that no test breaks; each uses a namespace of its own."""
    with RedisCluster() as started:
        yield started


@pytest.fixture
def fragile() -> Iterator[RedisCluster]:
    """One to be broken."""
    with RedisCluster() as started:
        yield started


@pytest.fixture
def namespace() -> str:
    """One that nobody has used before."""
    return f"test-{next(_numbers)}"
