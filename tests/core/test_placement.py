"""Where sessions and names of a sharded store are placed."""

from __future__ import annotations

import pytest

from lockfast.core.placement import CLIENT_DIGITS, Placement, session_id


@pytest.mark.parametrize("shard", [0, 3, 7])
def test_a_session_id_names_its_shard_and_begins_like_its_client(shard: int) -> None:
    placement = Placement(8)
    made = placement.session_id("0123456789", "abcdefghijklmnop", shard)
    assert placement.shard_of_session(made) == shard
    assert made[:CLIENT_DIGITS] == session_id("0123456789", "ABCDEFGHIJKLMNOP")[:CLIENT_DIGITS]


@pytest.mark.parametrize("session", ["abc", "abc-08", "abc-1", "abc-xx", "abc-²²"])
def test_an_id_of_no_shard_belongs_to_the_first(session: str) -> None:
    assert Placement(8).shard_of_session(session) == 0


def test_a_single_shard_has_every_session() -> None:
    assert Placement(1).shard_of_session("abc-01") == 0
