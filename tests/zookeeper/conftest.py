"""Every test of the ZooKeeper store runs against real servers: one node, and an ensemble."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.servers.zookeeper import ZooKeeperEnsemble


@pytest.fixture(scope="session")
def node() -> Iterator[ZooKeeperEnsemble]:
    """One server that lives as long as the tests; each uses a namespace of its own."""
    with ZooKeeperEnsemble() as started:
        yield started


@pytest.fixture(scope="session")
def trio() -> Iterator[ZooKeeperEnsemble]:
    """Three members that nobody harms."""
    with ZooKeeperEnsemble(3) as started:
        yield started
