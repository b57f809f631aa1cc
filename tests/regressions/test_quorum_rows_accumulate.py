"""A node of a majority deletes unused locks as fast as clients create new ones.

It deleted at most 16 per second, so a node on which more names than that were used per second
grew without bound.
"""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic

from lockfast.core.commands import Open
from lockfast.stores.quorum import messages as m
from lockfast.stores.quorum.codec import call_of, keys_of, script
from lockfast.stores.quorum.node import IDLE_MS, SWEEP, Node
from lockfast.stores.redis.address import Address
from lockfast.stores.redis.connection import Connection
from lockfast.stores.redis.resp import pack
from tests.servers.redis import RedisServer

NAMES = 10 * SWEEP
SKEW_US = 50_000
START_US = 1_700_000_000_000_000
OPEN = Open("s", 86_400_000, "owner", "", "inbox", "")

Apply = Callable[[m.Request, int], object]


def _use_many_names_then_one(apply: Apply) -> None:
    """Use many names once; after they have been idle for long, use one more often."""
    apply(OPEN, START_US)
    later_us = START_US + 2 * IDLE_MS * 1000
    for n in range(1, NAMES + 1):
        take = m.Take("s", n, "lock", f"name-{n}", START_US + n)
        apply(take, START_US)
        apply(m.Give(*take[:5]), START_US)
    for n in range(NAMES + 1, NAMES + 2 + NAMES // SWEEP):
        take = m.Take("s", n, "lock", "one", later_us + n)
        apply(take, later_us)
        apply(m.Give(*take[:5]), later_us)


def test_the_rules_delete_them() -> None:
    node = Node(SKEW_US)
    _use_many_names_then_one(lambda request, wall_us: node.apply(request, wall_us // 1000, wall_us))
    assert list(node._locks) == [("lock", "one")]


def test_the_script_deletes_them() -> None:
    with RedisServer() as server:
        keys = keys_of("sweep")
        server.run("HSET", keys[0], "run", "r", "floor", 0, "silent", 0)
        address = Address(str(server.socket), path=str(server.socket))
        connection = Connection(address, monotonic() + 10)

        def apply(request: m.Request, wall_us: int) -> object:
            name, arguments = call_of(request)
            fixed = (name, wall_us, SKEW_US, 60_000)
            packed = pack("EVAL", script(), len(keys), *keys, *fixed, *arguments)
            reply = connection.exchange(packed, monotonic() + 10)
            assert not isinstance(reply, Exception), reply
            return reply

        try:
            _use_many_names_then_one(apply)
        finally:
            connection.close()
        fields = server.run("HKEYS", keys[0])
        assert [field for field in fields if field.startswith("L")] == ["Llock\x1fone"]
        assert server.run("ZRANGE", keys[2], 0, -1) == ["lock\x1fone"]
