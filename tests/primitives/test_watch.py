"""Events of every kind, for every primitive."""

from __future__ import annotations

from typing import Any

import pytest

import lockfast
from tests.primitives.world import World, core_of


async def seen(watch: Any, count: int) -> list[tuple[str, str, str]]:
    found = []
    for _ in range(count):
        event = await anext(watch)
        found.append((event.kind, event.what, event.mode))
    return found


async def test_granted_waiting_gave_up_released(world: World) -> None:
    one, two = world.clients(2)
    watch = one.watch("a", after=0)
    async with one.lock("a") as lease:
        with pytest.raises(lockfast.AcquireTimeoutError):
            await two.lock("a").acquire(timeout=0.01)
        await world.until_queued(one, "a", 0)
    events = [await anext(watch) for _ in range(4)]
    assert [event.what for event in events] == ["granted", "waiting", "gave_up", "released"]
    assert events[0].token == events[3].token == lease.token
    assert events[1].token is None
    assert [event.position for event in events] == sorted({event.position for event in events})


async def test_converted(world: World) -> None:
    client = world.client()
    watch = client.watch("a", after=0)
    lease = await client.rwlock("a").update().acquire()
    await lease.upgrade()
    await lease.downgrade()
    await lease.release()
    assert await seen(watch, 4) == [
        ("lock", "granted", "update"),
        ("lock", "converted", "exclusive"),
        ("lock", "converted", "shared"),
        ("lock", "released", "shared"),
    ]


async def test_revoked_says_why(world: World) -> None:
    one, admin = world.clients(2)
    watch = admin.watch("a", after=0)
    lease = await one.lock("a").acquire()
    await admin.revoke("a", reason="maintenance")
    assert (await anext(watch)).what == "granted"
    event = await anext(watch)
    assert event.what == "revoked"
    assert "maintenance" in event.detail
    assert await lease.lost.wait(30)


async def test_expired_by_max_hold(world: World) -> None:
    """Whether the holder or the store notices first, it is not reported as released."""
    client = world.client()
    lease = await client.lock("a", max_hold=0.1).acquire()
    assert await lease.lost.wait(30)
    await world.until_seen(client, "a", lambda info: info.holder_count == 0)


async def test_expired_when_the_session_was_not_renewed(world: World) -> None:
    one, watcher = world.clients(2)
    watch = watcher.watch("a", after=0)
    lease = await one.lock("a", ttl=0.3).acquire()
    core = getattr(one, "it", one)._core
    (session,) = core.sessions()
    session.end("it was not renewed in time")
    assert lease.lost.is_set()
    assert [(await anext(watch)).what for _ in range(2)] == ["granted", "expired"]


@pytest.mark.parametrize("kind", ["tree", "semaphore", "election", "party", "once"])
async def test_every_kind(world: World, kind: str) -> None:
    client = world.client()
    watch = client.watch("x", kind=kind, after=0)
    async with client.lock("x"):  # of another kind: not seen here
        pass
    if kind == "tree":
        async with client.tree("x/y").read():
            pass
        # Each step changes both nodes.
        modes = ["intent_shared", "shared"]
        assert await seen(watch, 4) == [
            *((kind, "granted", mode) for mode in modes),
            *((kind, "released", mode) for mode in modes),
        ]
        return
    if kind == "semaphore":
        async with client.semaphore("x", 2):
            pass
    elif kind == "election":
        async with await client.election("x").campaign("me"):
            pass
    elif kind == "party":
        async with await client.party("x").join("me"):
            pass
    else:

        async def job() -> None:
            pass

        await client.once("x", at_least=0, at_most=10)(job)()
    assert [what for _, what, _ in await seen(watch, 2)] == ["granted", "released"]


async def test_several_at_once_are_events_of_each(world: World) -> None:
    client = world.client()
    watch = client.watch(after=0)
    async with client.all("a", "b") as lease:
        pass
    events = [await anext(watch) for _ in range(4)]
    assert [(event.what, event.name) for event in events] == [
        ("granted", "a"),
        ("granted", "b"),
        ("released", "a"),
        ("released", "b"),
    ]
    assert {event.token for event in events} == {lease.token}


async def test_all_kinds_together(world: World) -> None:
    client = world.client()
    watch = client.watch(kind=None, after=0)
    async with client.lock("a"), client.semaphore("s", 1), client.tree("t").read():
        pass
    kinds = [kind for kind, _, _ in await seen(watch, 6)]
    assert sorted(set(kinds)) == ["lock", "semaphore", "tree"]


async def test_a_watch_that_does_not_wait_leaves_nothing_registered(world: World) -> None:
    client = world.client()
    watch = client.watch("a", after=0)
    for _ in range(3):
        async with client.lock("a"):
            pass
        await seen(watch, 2)
    for session in core_of(client).sessions():
        assert session.on_end == []
        assert session.events_changed == []
