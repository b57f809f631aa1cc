"""lockfast.aio on event loops other than asyncio's own."""

from __future__ import annotations

from typing import Any

import anyio
import anyio.lowlevel
import pytest
import trio

import lockfast
import lockfast.aio
from lockfast.testing import ControlledStore


@pytest.mark.parametrize("options", [{}, {"use_uvloop": True}], ids=["asyncio", "uvloop"])
def test_anyio_on_asyncio_works(lockfast_store: ControlledStore, options: dict[str, Any]) -> None:
    order: list[str] = []

    async def take(client: lockfast.aio.Client, who: str) -> None:
        async with client.lock("a").acquire(timeout=30):
            order.append(who)
            await anyio.lowlevel.checkpoint()

    async def main() -> None:
        async with lockfast_store.connect_aio() as one, lockfast_store.connect_aio() as two:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(take, one, "one")
                tasks.start_soon(take, two, "two")
            with anyio.move_on_after(0.01) as scope:
                async with one.lock("b"), two.lock("b"):
                    raise AssertionError("both hold it")
            assert scope.cancelled_caught
            async with two.lock("b").acquire(timeout=30):
                pass

    anyio.run(main, backend_options=options)
    assert sorted(order) == ["one", "two"]


def test_trio_is_refused_with_what_to_do() -> None:
    client = lockfast.aio.connect("memory://trio")

    async def acquire() -> None:
        with pytest.raises(lockfast.UnsupportedError, match="to_thread"):
            await client.lock("a").acquire()
        with pytest.raises(lockfast.UnsupportedError, match="to_thread"):
            _ = lockfast.aio.connect("memory://trio")

    trio.run(acquire)


def test_trio_uses_the_blocking_api_on_threads(lockfast_client: lockfast.Client) -> None:
    async def main() -> None:
        lease = await trio.to_thread.run_sync(lockfast_client.lock("a").acquire)
        await trio.to_thread.run_sync(lease.release)

    trio.run(main)
