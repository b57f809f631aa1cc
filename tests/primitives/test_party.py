"""Parties: members with values; a member whose session ends has left."""

from __future__ import annotations

from typing import Any

from lockfast import LeaseState
from tests.primitives.world import World


def values(members: Any) -> list[str]:
    return [member.value for member in members]


async def test_members_with_values_in_the_order_they_came(world: World) -> None:
    one, two = world.clients(2)
    party = one.party("fleet")
    assert await party.members() == ()
    first = await party.join("ada:1")
    async with await two.party("fleet").join("ben:2") as second:
        members = await party.members()
        assert values(members) == ["ada:1", "ben:2"]
        assert [member.session for member in members] == [first.session, second.session]
    assert values(await party.members()) == ["ada:1"]
    await first.leave()
    assert first.state is LeaseState.RELEASED
    assert await party.members() == ()


async def test_one_client_may_join_twice(world: World) -> None:
    client = world.client()
    async with await client.party("fleet").join("a"), await client.party("fleet").join("b"):
        assert values(await client.party("fleet").members()) == ["a", "b"]


async def test_watching_joins_and_leaves(world: World) -> None:
    one, two, watcher = world.clients(3)
    changes = watcher.party("fleet").watch()
    assert values(await anext(changes)) == []
    first = await one.party("fleet").join("a")
    assert values(await anext(changes)) == ["a"]
    second = await two.party("fleet").join("b")
    assert values(await anext(changes)) == ["a", "b"]
    await first.leave()
    assert values(await anext(changes)) == ["b"]
    await second.leave()
    assert values(await anext(changes)) == []


async def test_an_ended_session_is_a_leave(world: World) -> None:
    """As after a crash: the member does not leave explicitly."""
    one, watcher = world.clients(2)
    membership = await one.party("fleet").join("a")
    changes = watcher.party("fleet").watch()
    assert values(await anext(changes)) == ["a"]
    await watcher.revoke(session=membership.session, reason="as if it had crashed")
    assert values(await anext(changes)) == []
    assert await membership.lost.wait(30)


async def test_a_closed_watch_ends(world: World) -> None:
    changes = world.client().party("fleet").watch()
    assert await anext(changes) == ()

    async def follow() -> int:
        return len([members async for members in changes])

    following = world.start(follow())
    changes.close()
    assert await following.result() == 0
