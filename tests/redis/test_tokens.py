"""Tokens are exact in Lua, far above what %.14g could print."""

from __future__ import annotations

import hashlib
from time import monotonic

import pytest

from lockfast.core import commands as c
from lockfast.core.checksum import checksum_of
from lockfast.stores.redis.address import Address
from lockfast.stores.redis.connection import Connection
from lockfast.stores.redis.resp import pack
from lockfast.stores.redis.scripts import channel_of
from tests.redis.stepping import ScriptSteps
from tests.redis.watching import PATIENCE_S
from tests.servers.redis import RedisServer

WALL_US = [2**50 + 1, 2**51 + 3, 2**53 - 100, 1_700_000_000_123_457]
PLACES = (c.Place("lock", "a", "exclusive"),)
BOTH = (c.Place("lock", "a", "shared"), c.Place("lock", "b", "shared"))


@pytest.mark.parametrize("watched", [False, True])
@pytest.mark.parametrize("places", [PLACES, BOTH])
@pytest.mark.parametrize("wall_us", WALL_US)
def test_tokens_above_2_to_the_50_are_exact(
    server: RedisServer, wall_us: int, places: tuple[c.Place, ...], watched: bool
) -> None:
    """On the short paths, which are used while nobody watches, and on the general ones."""
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


@pytest.mark.parametrize("watched", [False, True])
@pytest.mark.parametrize("wall_us", WALL_US)
def test_tokens_handed_over_are_exact(server: RedisServer, wall_us: int, watched: bool) -> None:
    """In the wake, in the stored rows, in the checksum, and in the published message."""
    steps = ScriptSteps(server.url(), watched=watched)
    sessions = [f"s{i} of {steps.namespace}".replace(" ", "-") for i in range(3)]
    until_s = monotonic() + PATIENCE_S
    path = str(server.socket)
    listener = Connection(Address(path, path=path), until_s, checked=False)
    for session in sessions:
        listener.exchange(pack("SUBSCRIBE", channel_of(steps.namespace, session)), until_s)
        steps.apply(c.Open(session, 60_000, "owner", inbox=f"inbox {session}"), 1000, wall_us)
        steps.apply(c.Enter(session, 1, PLACES), 1000, wall_us)
    for i, session in enumerate(sessions[1:], 1):
        now_ms, token = 1000 + i, wall_us + i
        _, wakes = steps.apply(c.Leave(sessions[i - 1], 1, PLACES), now_ms, wall_us)
        assert wakes == [c.Wake(f"inbox {session}", session, 1, "granted", token)]
        _, channel, told = listener.receive(until_s)
        assert channel == channel_of(steps.namespace, session)
        said, _, code = told.rpartition(" ")
        assert said == f"{session} 1 granted {token}"
        secret = f"inbox {session}"
        assert code == hashlib.sha1(f"{secret}{said}{secret}".encode()).hexdigest()
        views, _ = steps.apply(c.Claims(session), now_ms, wall_us)
        assert isinstance(views, c.ClaimsReply)
        assert [view.token for view in views.claims] == [token]
        renew = c.Renew(session, 1, checksum_of([(1, token)]))
        assert steps.apply(renew, now_ms, wall_us)[0] == c.Renewed(matches=True)
    listener.close()
    steps.close()
