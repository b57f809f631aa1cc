"""A change that a cancelled call has read is reported by the next call.

The watcher of a party reads an event, and then the members; the watcher of an election reads the
leader after a gap in the log. A call that was cancelled in between, or whose second request failed,
had used up the event: the change was reported with the next one, if there ever was one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from lockfast import aio
from lockfast.core.commands import Command, EventsReply, Inspect, Reply
from lockfast.flow.client import Core

PATIENCE_S = 60.0


def test_members_that_joined(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        async with aio.connect("memory://cancelled-party") as client:
            party = client.party("fleet")
            changes = party.watch()
            assert await anext(changes) == ()
            async with await party.join("a"):
                await _cancel_at_inspect(monkeypatch, lambda: anext(changes))
                members = await asyncio.wait_for(anext(changes), PATIENCE_S)
            assert [member.value for member in members] == ["a"]

    asyncio.run(scenario())


def test_a_leader_elected_in_a_gap(monkeypatch: pytest.MonkeyPatch) -> None:
    request = Core.request

    async def with_gap(self: Core, command: Command, *rest: Any, **more: Any) -> Reply:
        reply = await request(self, command, *rest, **more)
        if isinstance(reply, EventsReply):
            return reply._replace(oldest=reply.end + 1, events=())
        return reply

    async def scenario() -> None:
        async with aio.connect("memory://cancelled-observer") as client:
            election = client.election("scheduler")
            leaders = election.observe()
            assert await anext(leaders) is None
            async with election.campaign("a"):
                with monkeypatch.context() as patched:
                    patched.setattr(Core, "request", with_gap)
                    await _cancel_at_inspect(patched, lambda: anext(leaders))
                leader = await asyncio.wait_for(anext(leaders), PATIENCE_S)
            assert leader is not None
            assert leader.value == "a"

    asyncio.run(scenario())


async def _cancel_at_inspect(patch: pytest.MonkeyPatch, call: Callable[[], Any]) -> None:
    """Call, and cancel the call when it reads the resource."""
    reads, request = asyncio.Event(), Core.request

    async def stop_at_inspect(self: Core, command: Command, *rest: Any, **more: Any) -> Reply:
        if isinstance(command, Inspect):
            reads.set()
            await asyncio.get_running_loop().create_future()
        return await request(self, command, *rest, **more)

    with patch.context() as patched:
        patched.setattr(Core, "request", stop_at_inspect)
        task = asyncio.ensure_future(call())
        await asyncio.wait_for(reads.wait(), PATIENCE_S)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
