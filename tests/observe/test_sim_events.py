"""The simulator's clients emit the same events, in virtual time."""

from __future__ import annotations

from lockfast import events as e
from tests.conformance.cut import SlowWorld


def test_events_in_virtual_time() -> None:
    world = SlowWorld()
    seen: list[e.Event] = []

    async def story() -> None:
        client = world.client(ttl=3)
        client._core.emitter.observer = seen.append
        lease = await client.lock("a").acquire()
        await world.sleep(1500)
        await lease.release()
        await client.close()

    world.run(story())
    names = [type(event).__name__ for event in seen]
    assert names[:3] == ["AcquireBegun", "SessionOpened", "AcquireGranted"]
    assert "SessionRenewed" in names
    assert names[-1] == "SessionEnded"
    (released,) = [event for event in seen if isinstance(event, e.LeaseReleased)]
    assert released.hold_us >= 1_500_000
