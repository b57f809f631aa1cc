"""A deadlock through several tasks of one client was not found.

The detector read a session's claims once, and kept those of the actors it knew by then. An actor of
the same session that it met later was not followed.
"""

from __future__ import annotations

import asyncio

import pytest

import lockfast
import lockfast.aio


@pytest.mark.parametrize("clients_of_actors", [[0, 0, 1, 1, 1, 0], [1, 0, 0, 0, 1, 1, 1]])
def test_found(clients_of_actors: list[int]) -> None:
    """Each actor holds one lock and wants its neighbour's."""
    count = len(clients_of_actors)
    url = f"memory://two-actors-of-a-session-{count}"

    async def story() -> list[str]:
        clients = [lockfast.aio.connect(url, deadlock_after=0.1) for _ in range(2)]
        barrier = asyncio.Barrier(count)

        async def actor(at: int) -> str:
            client = clients[clients_of_actors[at]]
            async with client.lock(f"r{at}"):
                await barrier.wait()
                try:
                    async with client.lock(f"r{(at + 1) % count}"):
                        return "done"
                except lockfast.DeadlockError:
                    return "victim"

        async with asyncio.timeout(30):
            told = await asyncio.gather(*map(actor, range(count)))
        for client in clients:
            await client.close()
        return told

    told = asyncio.run(story())
    assert told.count("victim") == 1
    assert told.count("done") == count - 1
