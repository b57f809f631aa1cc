"""The merged log of several shards, and what a wire over them reports."""

from __future__ import annotations

import pytest

from lockfast.core import commands as c
from lockfast.core.placement import Placement
from lockfast.ports import Wire
from lockfast.runtimes.threads import run
from lockfast.stores.sharded.merging import merged_events
from lockfast.stores.sharded.positions import joined
from lockfast.stores.sharded.wire import ShardedWire


def test_after_a_lost_log_the_merged_one_begins_where_every_shard_begins() -> None:
    """A reader that goes on from there misses nothing that the shards still have."""
    after = [500, 7]
    replies = [c.EventsReply((), 3, 1, False), c.EventsReply((), 900, 800, False)]
    merged = merged_events(replies, after, 100)
    assert merged.oldest - 1 == joined([0, 799])


def event(position: int, wall_ms: int) -> c.Event:
    return c.Event(position, wall_ms, "granted", "lock", "a", "exclusive", "s", 1, "", 17, "")


def test_what_all_shards_have_is_merged_by_time() -> None:
    replies = [
        c.EventsReply((event(1, 1000), event(2, 3000)), 2, 1, False),
        c.EventsReply((event(1, 2000),), 1, 1, False),
    ]
    merged = merged_events(replies, [0, 0], 100)
    assert [each.position for each in merged.events] == [
        joined(position) for position in ([1, 0], [1, 1], [2, 1])
    ]
    assert not merged.more


def test_later_events_wait_for_a_shard_that_has_more() -> None:
    replies = [
        c.EventsReply((event(1, 1000),), 2, 1, True),
        c.EventsReply((event(1, 2000),), 1, 1, False),
    ]
    merged = merged_events(replies, [0, 0], 100)
    assert [each.position for each in merged.events] == [joined([1, 0])]
    assert merged.more


class _Uncounted:
    """A wire to a shard in the same process, which has no connections."""

    async def send(self, command: c.Command, timeout_ms: int) -> c.Reply:
        return c.Done()

    def close(self) -> None: ...


class _Counting(_Uncounted):
    connections = 3


@pytest.mark.parametrize(("kind", "counted"), [(_Counting, 6), (_Uncounted, 0)])
def test_only_connections_that_were_made_are_counted(kind: type[Wire], counted: int) -> None:
    """A change of the number makes a keeper forget which sessions have been silent."""
    placement = Placement(2)
    wire = ShardedWire("counted", placement, lambda shard: kind())
    assert wire.connections == 0
    for name in "abcdef":
        run(wire.send(c.Inspect("lock", name), 1000))
    assert wire.connections == counted
