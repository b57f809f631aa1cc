"""Tokens are exact through Lua, far above what %.14g would print."""

from __future__ import annotations

import pytest

from lockfast.core import commands as c
from lockfast.core.checksum import checksum_of
from lockfast.stores.redis.address import parse
from lockfast.stores.redis.wire import BlockingWire, Shard
from lockfast.stores.registry import parse_url
from tests.servers.redis import RedisServer

PLACES = (c.Place("lock", "a", "exclusive"),)
BOTH = (c.Place("lock", "a", "shared"), c.Place("lock", "b", "shared"))


@pytest.mark.parametrize("places", [PLACES, BOTH])
@pytest.mark.parametrize("wall_us", [2**50 + 1, 2**51 + 3, 2**53 - 100, 1_700_000_000_123_457])
def test_tokens_above_2_to_the_50_are_exact(
    server: RedisServer, wall_us: int, places: tuple[c.Place, ...]
) -> None:
    wire = BlockingWire(Shard(parse(parse_url(server.url()))))
    expected = wall_us
    wire.step(c.Open("s", 60_000, "owner"), 1000, wall_us)
    for n in range(1, 12):
        reply, _ = wire.step(c.Enter("s", n, places, block=n), 1000 + n, wall_us)
        assert isinstance(reply, c.Granted)
        assert reply.token == expected
        views, _ = wire.step(c.Claims("s"), 1000 + n, wall_us)
        assert isinstance(views, c.ClaimsReply)
        assert [view.token for view in views.claims] == [expected]
        checksum = checksum_of([(n, expected)])
        renewed, _ = wire.step(c.Renew("s", 1, checksum), 1000 + n, wall_us)
        assert renewed == c.Renewed(matches=True)
        events, _ = wire.step(c.Events(0), 1000 + n, wall_us)
        assert isinstance(events, c.EventsReply)
        assert events.events[-1].token == expected
        wire.step(c.Leave("s", n, places), 1000 + n, wall_us)
        expected += n
    wire.close()
