"""What wrong clocks of nodes cost: liveness, or G1 if a majority jumps together, but never G3."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

import lockfast
from lockfast.errors import AcquireTimeoutError
from lockfast.stores.memory import wall_us
from lockfast.stores.quorum import opening
from lockfast.stores.quorum.local import LocalNodes
from lockfast.stores.quorum.messages import Answer, FreeWake, Request
from lockfast.stores.quorum.node import Node

HOUR_S = 3600
_numbers = itertools.count()


class ShiftedNode:
    """A node whose clock is wrong by `shift_s`."""

    def __init__(self) -> None:
        self.shift_s = 0
        self._node = Node()

    def apply(self, request: Request) -> tuple[Answer, list[FreeWake]]:
        now_us = wall_us() + self.shift_s * 1_000_000
        return self._node.apply(request, now_us // 1000, now_us)

    def close(self) -> None:
        """Do nothing."""


class Five:
    """Five nodes and their URL."""

    def __init__(self) -> None:
        self.nodes = [ShiftedNode() for _ in range(5)]
        location = f"5/clocks-{next(_numbers)}"
        self.url = f"quorum+memory://{location}"
        opening._nodes[location, ""] = LocalNodes(self.nodes)

    def shift(self, *hours: int) -> None:
        for node, each in zip(self.nodes, hours, strict=True):
            node.shift_s = each * HOUR_S


@pytest.fixture
def five() -> Iterator[Five]:
    made = Five()
    yield made
    opening._nodes.pop((made.url.removeprefix("quorum+memory://"), ""))


def test_a_minority_of_wrong_clocks_changes_nothing(five: Five) -> None:
    with lockfast.connect(five.url) as client, lockfast.connect(five.url) as other:
        held = client.lock("a").acquire()
        five.shift(1, -1, 0, 0, 0)
        assert other.lock("a").try_acquire() is None
        held.release()
        with other.lock("a").acquire(timeout=10) as lease:
            assert lease.token > held.token


def test_clocks_that_all_disagree_grant_nothing(five: Five) -> None:
    """No ballot is close enough to the clocks of a majority: liveness is lost, not G3."""
    with lockfast.connect(five.url) as client:
        with client.lock("a") as before:
            pass
        five.shift(-2, -1, 0, 1, 2)
        with pytest.raises(AcquireTimeoutError):
            client.lock("a").acquire(timeout=0.3)
        five.shift(0, 0, 0, 0, 0)
        with client.lock("a").acquire(timeout=10) as after:
            assert after.token > before.token


def test_a_majority_that_jumps_together_loses_exclusion_and_then_liveness(five: Five) -> None:
    """Three nodes take the lease for expired, so it is granted again, with a higher token.

    Once the clocks are right again, these nodes refuse lower ballots until time has caught up.
    """
    with lockfast.connect(five.url) as client, lockfast.connect(five.url) as other:
        held = client.lock("a").acquire()
        five.shift(1, 1, 1, 0, 0)
        with other.lock("a").acquire(timeout=10) as lease:
            assert lease.token > held.token
        five.shift(0, 0, 0, 0, 0)
        with pytest.raises(AcquireTimeoutError):
            other.lock("a").acquire(timeout=0.3)
