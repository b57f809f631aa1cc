"""What is shown of a lock follows a majority of its nodes."""

from __future__ import annotations

import pytest

from lockfast.stores.quorum import messages as m
from lockfast.stores.quorum import views


@pytest.mark.parametrize(
    ("contenders", "shown"),
    [
        ((1, 1, 0, 0, 0), 0),  # refused by two nodes, and granted by the others
        ((2, 2, 1, 0, 0), 1),
        ((3, 3, 3, None, None), 3),
        ((1, 1, None, None, None), 0),
    ],
)
def test_a_minority_of_nodes_shows_no_waiters(
    contenders: tuple[int | None, ...], shown: int
) -> None:
    answers = [
        None if count is None else m.Locks((m.LockView("lock", "a", 0, count, None),), False)
        for count in contenders
    ]
    assert views.resource("lock", "a", answers).waiting_count == shown
