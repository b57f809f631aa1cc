"""A deadlock of three clients was found by none of them if each used two TTLs.

A client has a session per TTL. The search began with all sessions of its own client, but
followed other clients only through the sessions that it met, so it did not see what an actor
waits for in another session than that in which it holds.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

import lockfast
import lockfast.aio

CLIENTS = 3


@pytest.mark.parametrize("store", ["memory", "sqlite"])
def test_found(store: str, tmp_path: Path) -> None:
    """Each client holds one lock with a short TTL and wants its neighbour's with a long one."""
    url = "memory://three-clients-with-two-ttls" if store == "memory" else f"sqlite:///{tmp_path}/x"

    async def story() -> list[str]:
        clients = [lockfast.aio.connect(url, deadlock_after=0.1) for _ in range(CLIENTS)]
        barrier = asyncio.Barrier(CLIENTS)

        async def actor(at: int) -> str:
            client = clients[at]
            async with client.lock(f"r{at}", ttl=10):
                await barrier.wait()
                try:
                    async with client.lock(f"r{(at + 1) % CLIENTS}", ttl=20):
                        return "done"
                except lockfast.DeadlockError:
                    return "victim"

        async with asyncio.timeout(30):
            told = await asyncio.gather(*map(actor, range(CLIENTS)))
        for client in clients:
            await client.close()
        return told

    told = asyncio.run(story())
    assert sorted(told) == ["done", "done", "victim"]
