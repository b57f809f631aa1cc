"""A claim that times out reads the head of its queue, not all of it.

It read up to a thousand claims to tell its position, and in a long queue every claim may time out
at once.
"""

from __future__ import annotations

import asyncio

import pytest

import lockfast
import lockfast.aio
from lockfast.core.commands import Command, Inspect, Reply
from lockfast.errors import AHEAD_COUNTED_MAX, HOLDERS_SHOWN_MAX
from lockfast.ports import Wire
from tests.api.worlds import fresh_url


class Spy:
    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        self.read: list[int] = []

    async def send(self, command: Command, timeout_ms: int) -> Reply:
        if isinstance(command, Inspect):
            self.read.append(command.waiting_max)
        return await self._wire.send(command, timeout_ms)

    def close(self) -> None:
        self._wire.close()


def test_the_position_is_counted_up_to_a_bound() -> None:
    async def main() -> tuple[list[int], lockfast.AcquireTimeoutError]:
        async with lockfast.aio.connect(fresh_url()) as client, client.lock("a"):
            crowd = [
                asyncio.ensure_future(client.lock("a").acquire())
                for _ in range(AHEAD_COUNTED_MAX + 5)
            ]
            while (await client.inspect("a")).waiting_count < len(crowd):
                await asyncio.sleep(0)
            client._core.wire = spy = Spy(client._core.wire)
            with pytest.raises(lockfast.AcquireTimeoutError) as caught:
                await client.lock("a").acquire(timeout=0.05)
            for waiting in crowd:
                waiting.cancel()
            await asyncio.gather(*crowd, return_exceptions=True)
            return spy.read, caught.value

    read, error = asyncio.run(main())
    assert read == [AHEAD_COUNTED_MAX]
    assert error.ahead == AHEAD_COUNTED_MAX
    assert f"{AHEAD_COUNTED_MAX} or more ahead in the queue" in str(error)


def test_a_message_names_a_few_holders() -> None:
    holders = tuple(f"host-{i}" for i in range(1000))
    error = lockfast.AcquireTimeoutError("api", 5, holders=holders)
    assert f"host-{HOLDERS_SHOWN_MAX - 1}, {1000 - HOLDERS_SHOWN_MAX} more" in str(error)
    assert error.holders == holders
