"""Tokens are exact through Lua, far above what %.14g would print."""

from __future__ import annotations

import pytest

from lockfast.core import commands as c
from lockfast.core.checksum import checksum_of
from tests.redis.stepping import ScriptSteps
from tests.servers.redis import RedisServer

PLACES = (c.Place("lock", "a", "exclusive"),)
BOTH = (c.Place("lock", "a", "shared"), c.Place("lock", "b", "shared"))


@pytest.mark.parametrize("watched", [False, True])
@pytest.mark.parametrize("places", [PLACES, BOTH])
@pytest.mark.parametrize("wall_us", [2**50 + 1, 2**51 + 3, 2**53 - 100, 1_700_000_000_123_457])
def test_tokens_above_2_to_the_50_are_exact(
    server: RedisServer, wall_us: int, places: tuple[c.Place, ...], watched: bool
) -> None:
    """On the short ways, which there are while nobody watches, and on the long ones."""
    steps = ScriptSteps(server.url(), watched=watched)
    expected = wall_us
    steps.apply(c.Open("s", 60_000, "owner"), 1000, wall_us)
    for n in range(1, 12):
        reply, _ = steps.apply(
            c.Enter("s", n, places, block=n if watched else 1), 1000 + n, wall_us
        )
        assert isinstance(reply, c.Granted)
        assert reply.token == expected
        views, _ = steps.apply(c.Claims("s"), 1000 + n, wall_us)
        assert isinstance(views, c.ClaimsReply)
        assert [view.token for view in views.claims] == [expected]
        checksum = checksum_of([(n, expected)])
        renewed, _ = steps.apply(c.Renew("s", 1, checksum), 1000 + n, wall_us)
        assert renewed == c.Renewed(matches=True)
        if watched:
            events, _ = steps.apply(c.Events(0), 1000 + n, wall_us)
            assert isinstance(events, c.EventsReply)
            assert events.events[-1].token == expected
        steps.apply(c.Leave("s", n, places), 1000 + n, wall_us)
        expected += n if watched else 1
    steps.close()
