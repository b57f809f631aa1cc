"""Every test of the ZooKeeper store runs against real servers: one node, and an ensemble."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.servers.zookeeper import ZooKeeperEnsemble


@pytest.fixture(scope="session")
def node() -> Iterator[ZooKeeperEnsemble]:
    """One server that runs as long as the tests; each test uses its own namespace."""
    with ZooKeeperEnsemble() as started:
        yield started


@pytest.fixture(scope="session")
def trio() -> Iterator[ZooKeeperEnsemble]:
    """Three members that no test breaks."""
    with ZooKeeperEnsemble(3) as started:
        yield started
