"""Merge the replies of all shards, for commands that read the whole store."""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence

from lockfast.core import commands as c
from lockfast.stores.sharded.positions import joined


def merged_listing(replies: Sequence[c.ListingReply], limit: int) -> c.ListingReply:
    found = sorted((view for reply in replies for view in reply.resources), key=lambda v: v.name)
    more = len(found) > limit or any(reply.more for reply in replies)
    return c.ListingReply(tuple(found[:limit]), more)


def merged_sessions(replies: Sequence[c.SessionsReply], limit: int) -> c.SessionsReply:
    found = sorted((view for reply in replies for view in reply.sessions), key=lambda v: v.session)
    more = len(found) > limit or any(reply.more for reply in replies)
    return c.SessionsReply(tuple(found[:limit]), more)


def merged_events(
    replies: Sequence[c.EventsReply], after: Sequence[int] | None, limit: int
) -> c.EventsReply:
    """Merge the logs of all shards, read from the positions `after`; None: only their ends."""
    if after is None:
        end = joined(reply.end for reply in replies)
        return c.EventsReply((), end, end + 1, False)
    if any(reply.end < at for reply, at in zip(replies, after, strict=True)):
        # A shard has lost its log. The reply must show a gap, whatever the others have gained.
        oldest = max(joined(reply.oldest - 1 for reply in replies), joined(after) + 1) + 1
        return c.EventsReply((), joined(reply.end for reply in replies), oldest, False)
    events = _in_order(replies)
    position = list(after)
    placed: list[c.Event] = []
    for shard, event in events[:limit]:
        position[shard] = event.position
        placed.append(event._replace(position=joined(position)))
    known = [
        max(at, reply.oldest - 1) if at < reply.end else at
        for reply, at in zip(replies, after, strict=True)
    ]
    more = len(events) > limit or any(reply.more for reply in replies)
    return c.EventsReply(
        tuple(placed), joined(reply.end for reply in replies), joined(known) + 1, more
    )


def _in_order(replies: Sequence[c.EventsReply]) -> list[tuple[int, c.Event]]:
    """Return the events by time; those of one shard in the order of its log.

    If a shard has more events than were read, later events of other shards wait for the next
    read.
    """
    lines = [list(_timed(shard, reply)) for shard, reply in enumerate(replies)]
    unread_ms = min(
        (line[-1][0] for line, reply in zip(lines, replies, strict=True) if reply.more and line),
        default=None,
    )
    return [
        (shard, event)
        for at_ms, shard, event in heapq.merge(*lines, key=lambda timed: timed[0])
        if unread_ms is None or at_ms <= unread_ms
    ]


def _timed(shard: int, reply: c.EventsReply) -> Iterator[tuple[int, int, c.Event]]:
    """Yield the events with times that never go back, even if the shard's clock did."""
    at_ms = 0
    for event in reply.events:
        at_ms = max(at_ms, event.wall_ms)
        yield at_ms, shard, event
