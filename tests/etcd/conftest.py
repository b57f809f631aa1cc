"""Every test of the etcd store runs against real servers: one node, and a cluster of three."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.servers.etcd import EtcdCluster


@pytest.fixture(scope="session")
def node() -> Iterator[EtcdCluster]:
    """One member that runs as long as the tests; each test uses its own namespace."""
    with EtcdCluster(1) as started:
        yield started


@pytest.fixture(scope="session")
def trio() -> Iterator[EtcdCluster]:
    """Three members that no test breaks."""
    with EtcdCluster(3) as started:
        yield started
