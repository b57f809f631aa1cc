"""A line of any length is served in order, and a grant costs the same in all of them."""

from __future__ import annotations

import pytest

from tests.etcd.lines import serve


@pytest.mark.parametrize(("clients", "waiters"), [(1, 20), (3, 20), (1, 200), (8, 200)])
def test_all_are_served_in_the_order_of_arrival(clients: int, waiters: int) -> None:
    """What a holder is told of its line must never be taken for the whole line."""
    served = serve(clients, waiters, grants=waiters)
    assert served.order == served.entered


def test_a_grant_costs_the_same_in_a_line_of_any_length() -> None:
    """Four of five are one request: whoever grants tells its heir who is next."""
    short, long = serve(2, 60, grants=50), serve(2, 600, grants=50)
    assert long.order == long.entered[:50]
    assert long.requests_per_grant == short.requests_per_grant <= 1.3
    assert long.bytes_per_grant == pytest.approx(short.bytes_per_grant, rel=0.05)
