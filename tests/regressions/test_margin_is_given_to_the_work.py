"""The margin before the end of a lease was not available to the work.

At its local deadline the keeper expelled its own session, and the successor held the lock a few
milliseconds later, while the body that had lost it was still being stopped. The local end of
`max_hold` did the same. The work may now use the margin; if it stops earlier, the successor is
admitted earlier.
"""

from __future__ import annotations

import pytest

import lockfast
from lockfast.core.commands import Renew
from lockfast.flow.session_life import margin_ms
from tests.conformance.cut import SlowWorld

TTL_MS = 3_000


def lose_the_session(world: SlowWorld) -> None:
    world.store.is_cut = lambda command: isinstance(command, Renew)


@pytest.mark.parametrize("retain", [False, True])
def test_work_that_goes_on_has_the_margin_to_itself(retain: bool) -> None:
    world = SlowWorld()

    async def story() -> None:
        client, other = world.client(ttl=TTL_MS / 1000), world.other()
        lease = await client.lock("a", retain=retain).acquire()
        successor = world.start(other.lock("a").acquire())
        lose_the_session(world)
        assert await lease.lost.wait()
        deadline_ms = round(lease.deadline * 1000)
        assert world.now_ms() >= deadline_ms
        await successor.result()
        assert world.now_ms() >= deadline_ms + margin_ms(TTL_MS)

    world.run(story())


@pytest.mark.parametrize("retain", [False, True])
def test_work_that_has_stopped_is_not_waited_for(retain: bool) -> None:
    world = SlowWorld()

    async def story() -> None:
        client, other = world.client(ttl=TTL_MS / 1000), world.other()
        lease = await client.lock("a", retain=retain).acquire()
        successor = world.start(other.lock("a").acquire())
        lose_the_session(world)
        assert await lease.lost.wait()
        with pytest.raises(lockfast.LeaseLostError):
            await lease.release()
        await successor.result()
        assert world.now_ms() < round(lease.deadline * 1000) + margin_ms(TTL_MS)

    world.run(story())


@pytest.mark.parametrize("stops", [False, True])
def test_max_hold_leaves_the_margin_too(stops: bool) -> None:
    world = SlowWorld()
    hold_ms = 30_000

    async def story() -> None:
        client, other = world.client(ttl=60), world.other(ttl=120)
        lease = await client.lock("a", max_hold=hold_ms / 1000).acquire()
        successor = world.start(other.lock("a").acquire())
        assert await lease.lost.wait()
        deadline_ms = round(lease.deadline * 1000)
        if stops:
            with pytest.raises(lockfast.LeaseLostError):
                await lease.release()
        await successor.result()
        assert (world.now_ms() < deadline_ms + margin_ms(hold_ms)) == stops
        await client.close()

    world.run(story())


def test_an_idle_retained_lock_is_given_up_at_once() -> None:
    """No work runs under it, so the margin is not needed."""
    world = SlowWorld()

    async def story() -> None:
        client, other = world.client(ttl=TTL_MS / 1000), world.other()
        lease = await client.lock("a", retain=True).acquire()
        await lease.release()
        (session,) = client._core.sessions()
        lose_the_session(world)
        deadline_ms = session.snapshot.deadline_ms
        await world.sleep(TTL_MS // 2)
        successor = world.start(other.lock("a").acquire())
        await successor.result()
        assert world.now_ms() < deadline_ms + margin_ms(TTL_MS)

    world.run(story())
