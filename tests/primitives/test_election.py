"""Elections: one leader, whose term has an epoch; observers see each change once."""

from __future__ import annotations

import threading
from typing import Any

import pytest

import lockfast
from lockfast import LeaseState
from tests.primitives.world import World


async def test_one_leads_and_the_others_wait(world: World) -> None:
    one, two = world.clients(2)
    term = await one.election("chair").campaign("ada")
    leader = await two.election("chair").leader()
    assert (leader.value, leader.epoch, leader.session) == ("ada", term.epoch, term.session)
    assert term.token == term.epoch
    with pytest.raises(lockfast.AcquireTimeoutError):
        await two.election("chair").campaign("ben", timeout=0.02)
    waiting = world.start(two.election("chair").campaign("ben"))
    await world.until_queued(one, "chair", 1, "election")
    await term.resign()
    assert term.state is LeaseState.RELEASED
    next_term = await waiting.result()
    assert next_term.epoch > term.epoch
    assert (await one.election("chair").leader()).value == "ben"
    await next_term.resign()
    assert await one.election("chair").leader() is None


async def test_a_term_is_a_block(world: World) -> None:
    one, two = world.clients(2)
    async with await one.election("chair").campaign("ada") as term:
        term.check()
        assert (await two.election("chair").leader()).value == "ada"
    assert await two.election("chair").leader() is None


async def test_observers_see_the_present_leader_first_then_each_change_once(
    world: World,
) -> None:
    one, two, watcher = world.clients(3)
    seen = watcher.election("chair").observe()
    assert await anext(seen) is None
    term = await one.election("chair").campaign("ada")
    assert (await anext(seen)).value == "ada"
    await term.proclaim("ada:8080")
    assert (await anext(seen)).value == "ada:8080"
    await term.proclaim("ada:8080")  # no change
    waiting = world.start(two.election("chair").campaign("ben"))
    await world.until_queued(one, "chair", 1, "election")
    await term.resign()
    change = await anext(seen)
    assert change.value == "ben", "no nobody in between: it is one change"
    next_term = await waiting.result()
    assert change.epoch == next_term.epoch
    late = watcher.election("chair").observe()
    assert (await anext(late)).value == "ben"
    await next_term.resign()
    assert await anext(seen) is None
    assert await anext(late) is None
    # Changes that did not last are reported too if there was time between them.
    for value in ("x", "y"):
        await (await one.election("chair").campaign(value)).resign()
        await world.pass_ms(3)
    values = [(await anext(seen)) for _ in range(4)]
    assert [value and value.value for value in values] == ["x", None, "y", None]


async def test_an_observer_hears_nothing_of_other_elections(world: World) -> None:
    one, watcher = world.clients(2)
    seen = watcher.election("chair").observe()
    assert await anext(seen) is None
    async with one.election("chairman"), one.lock("chair"):
        pass
    async with await one.election("chair").campaign("ada"):
        assert (await anext(seen)).value == "ada"


async def test_a_closed_observation_ends(world: World) -> None:
    watcher = world.client()
    seen = watcher.election("chair").observe()
    assert await anext(seen) is None

    async def observe() -> int:
        return len([leader async for leader in seen])

    observing = world.start(observe())
    seen.close()
    assert await observing.result() == 0


async def test_callbacks_for_becoming_and_losing(world: World) -> None:
    one, admin = world.clients(2)
    elected: list[int] = []
    lost = threading.Event()
    term = await one.election("chair").campaign(
        "ada",
        on_elected=lambda term: elected.append(term.epoch),
        on_lost=lambda term: lost.set(),
    )
    assert elected == [term.epoch]
    assert await admin.revoke("chair", kind="election", reason="new elections") == 1

    async def is_lost() -> bool:
        return lost.is_set()

    await world.until(is_lost)
    with pytest.raises(lockfast.LeaseLostError, match="new elections"):
        await term.proclaim("still me")
    with pytest.raises(lockfast.LeaseLostError):
        await term.resign()


async def test_no_callback_for_a_term_that_was_resigned(world: World) -> None:
    client = world.client()
    lost: list[Any] = []
    term = await client.election("chair").campaign("ada", on_lost=lost.append)
    await term.resign()
    async with await client.election("chair").campaign("ben"):
        pass
    assert lost == []


async def test_a_value_is_bounded(world: World) -> None:
    client = world.client()
    with pytest.raises(lockfast.LimitError):
        await client.election("chair").campaign("x" * 5000)
    async with await client.election("chair").campaign("x" * 4096) as term:
        with pytest.raises(lockfast.LimitError):
            await term.proclaim("x" * 5000)
