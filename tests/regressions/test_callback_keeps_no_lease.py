"""A lease with an `on_lost` callback was never released when it was garbage.

An unreferenced lease is released, with a warning. The callback referred to the lease and the
session to the callback, so the lease was always reachable.
"""

from __future__ import annotations

import asyncio

import pytest

import lockfast
import lockfast.aio


def test_forgotten_lease_with_a_callback() -> None:
    with lockfast.connect("memory://forgotten-with-callback") as client:
        lease = client.lock("orders/42").acquire()
        lease.on_lost(lambda lost: None)

        with pytest.warns(ResourceWarning, match="never released"):
            del lease

        client.lock("orders/42").acquire(timeout=30).release()


def test_forgotten_lease_with_a_callback_of_a_loop() -> None:
    async def story() -> None:
        async with lockfast.aio.connect("memory://forgotten-with-callback-aio") as client:
            lease = await client.lock("orders/42").acquire()
            lease.on_lost(lambda lost: None)

            with pytest.warns(ResourceWarning, match="never released"):
                del lease

            await (await client.lock("orders/42").acquire(timeout=30)).release()

    asyncio.run(story())
