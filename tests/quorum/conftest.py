"""Tests of the majority store run against real nodes wherever that is what they are about."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.quorum.nodes import FiveNodes, five_nodes


@pytest.fixture(scope="session")
def five() -> Iterator[FiveNodes]:
    """Five nodes that nobody harms."""
    with five_nodes() as started:
        yield started


@pytest.fixture
def fragile() -> Iterator[FiveNodes]:
    """Five nodes of the test's own."""
    with five_nodes() as started:
        yield started
