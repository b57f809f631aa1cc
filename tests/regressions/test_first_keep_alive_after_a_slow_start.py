"""A lease was lost on a healthy store if opening its session took most of the TTL.

The deadline counts from before the session was opened, but the first keep-alive was sent a third of
the TTL after the reply, however little time was left then.
"""

from __future__ import annotations

import pytest

from lockfast.core.commands import Enter
from tests.conformance.cut import SlowWorld

TTL_MS = 3_000


@pytest.mark.parametrize("share", [0.5, 0.7, 0.9])
def test_the_lease_is_kept(share: float) -> None:
    world = SlowWorld()
    world.store.delay_ms = lambda command: (
        int(TTL_MS * share) if isinstance(command, Enter) and command.open else 0
    )

    async def story() -> None:
        client = world.client(ttl=TTL_MS / 1000)
        lease = await client.lock("a").acquire()
        session = lease.session
        await world.sleep(3 * TTL_MS)
        lease.check()
        assert lease.session == session
        await lease.release()
        await client.close()

    world.run(story())
