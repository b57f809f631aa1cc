"""Tests of the majority store; those about real nodes run against them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.quorum.nodes import FiveNodes, five_nodes


@pytest.fixture(scope="session")
def five() -> Iterator[FiveNodes]:
    """Five nodes that no test breaks."""
    with five_nodes() as started:
        yield started


@pytest.fixture
def fragile() -> Iterator[FiveNodes]:
    """Five nodes for one test."""
    with five_nodes() as started:
        yield started
