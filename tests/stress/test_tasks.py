"""Tasks cancelled at any time, and a loss while their event loop is blocked."""

from __future__ import annotations

import asyncio
import gc
import os
import random
import threading

import pytest

import lockfast.aio
from lockfast.core.commands import Claims, ClaimsReply
from tests.processes.crew import PATIENCE_S

SEED = 42


def footprint() -> tuple[int, int]:
    """Return how many threads and descriptors this process has."""
    gc.collect()
    return threading.active_count(), len(os.listdir("/proc/self/fd"))


async def claims_of(client: lockfast.aio.Client) -> int:
    found = 0
    for session in client._core.sessions():
        reply = await client._core.request(Claims(session.id))
        found += len(reply.claims) if isinstance(reply, ClaimsReply) else 0
    return found


async def is_clean(client: lockfast.aio.Client, before: tuple[int, int]) -> None:
    """Return once nothing is left, sooner than a keep-alive could have repaired it."""
    async with asyncio.timeout(8.0):
        while await claims_of(client) or await client.list() or footprint() > before:
            await asyncio.sleep(0.002)


def test_a_thousand_cancelled_in_acquire_body_and_release(url: str) -> None:
    """At a random time, free or contended: no row, thread or descriptor is left."""
    instants = random.Random(SEED)

    async def take(client: lockfast.aio.Client, name: str) -> None:
        async with client.lock(name):
            await asyncio.sleep(instants.random() * 0.002)

    async def story() -> None:
        async with lockfast.aio.connect(url, ttl=30.0) as client:
            await take(client, "warm")
            before = footprint()
            for _ in range(20):
                tasks = [
                    asyncio.create_task(take(client, instants.choice("abc"))) for _ in range(50)
                ]
                for task in instants.sample(tasks, len(tasks)):
                    # After some iterations of the loop, or some time: both kinds of points.
                    for _ in range(instants.randrange(4)):
                        await asyncio.sleep(0)
                    if instants.random() < 0.2:
                        await asyncio.sleep(instants.random() * 0.002)
                    task.cancel()
                done = await asyncio.gather(*tasks, return_exceptions=True)
                assert {type(result) for result in done} <= {asyncio.CancelledError, type(None)}
            await is_clean(client, before)
            for name in "abc":
                await take(client, name)

    asyncio.run(story())


def test_loss_while_the_loop_is_blocked(url: str) -> None:
    """Revoked during that time: the first check shows it, and the block ends at its next await."""

    async def story() -> None:
        async with lockfast.aio.connect(url, ttl=30.0) as client:
            told = threading.Event()
            with pytest.raises(lockfast.LeaseLostError, match="to be told"):
                async with client.lock("orders/42") as lease:
                    lease._on_end(told.set)
                    with lockfast.connect(url) as admin:
                        assert admin.revoke("orders/42", reason="to be told") == 1
                    assert told.wait(PATIENCE_S), "the loop is blocked here, the keeper is not"
                    assert lease.lost.is_set()
                    await asyncio.sleep(3600)

    asyncio.run(story())
