"""Every test of the etcd store runs against real servers: one node, and a cluster of three."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.servers.etcd import EtcdCluster


@pytest.fixture(scope="session")
def node() -> Iterator[EtcdCluster]:
    """One member that lives as long as the tests; each uses a namespace of its own."""
    with EtcdCluster(1) as started:
        yield started


@pytest.fixture(scope="session")
def trio() -> Iterator[EtcdCluster]:
    """Three members that nobody harms."""
    with EtcdCluster(3) as started:
        yield started
