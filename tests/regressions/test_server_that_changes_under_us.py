"""A Redis server's configuration changes while clients are connected.

Only the first connection of a client checked the eviction policy, so a replacement server could
drop locks unnoticed. And a password set at run time was answered with "please report this".
"""

from __future__ import annotations

import asyncio

import pytest

from lockfast.core import commands as c
from lockfast.errors import StoreMisconfiguredError
from lockfast.runtimes.threads import run
from lockfast.stores.registry import Face, open_store
from tests.servers.redis import RedisServer

FACES: tuple[Face, ...] = ("threads", "asyncio")


async def told_after(server: RedisServer, face: Face, *change: str) -> str:
    """Return the error that a connected store gets on its next connection after a change."""
    store = open_store(server.url(), face)
    wire = store.caller_wire()
    try:
        assert isinstance(await wire.send(c.Sessions(), 5000), c.SessionsReply)
        server.run("CONFIG", "SET", *change)
        password = change[1] if change[0] == "requirepass" else ""
        server.run("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes", password=password)
        for _ in range(3):  # it may notice only now that its connection is gone
            try:
                await wire.send(c.Sessions(), 5000)
            except StoreMisconfiguredError as error:
                return str(error)
            except Exception:
                continue
        raise AssertionError("it was not refused")
    finally:
        store.close()


@pytest.mark.parametrize("face", FACES)
def test_an_eviction_policy_set_later_is_refused(face: Face) -> None:
    with RedisServer() as server:
        story = told_after(server, face, "maxmemory-policy", "allkeys-lru")
        said = asyncio.run(story) if face == "asyncio" else run(story)
    assert "allkeys-lru" in said


@pytest.mark.parametrize("face", FACES)
def test_a_password_set_later_is_asked_for(face: Face) -> None:
    with RedisServer() as server:
        story = told_after(server, face, "requirepass", "secret")
        said = asyncio.run(story) if face == "asyncio" else run(story)
    assert "requires a password" in said
    assert "report" not in said
