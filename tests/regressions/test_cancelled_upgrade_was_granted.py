"""An upgrade cancelled at the moment it was granted left a writer behind, or lost the lease.

To undo the conversion, the client requested the mode it had by then: exclusive, if it had already
learned of the grant. If it had not, it did not learn of the new token either, and the next
keep-alive reported a token that the client did not know.
"""

from __future__ import annotations

import asyncio
import itertools
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

import lockfast
import lockfast.aio
from lockfast import LeaseState
from lockfast.core.commands import Look

_numbers = itertools.count()


@pytest.mark.parametrize("heard", [True, False], ids=["heard", "unheard"])
def test_cancelled_upgrade_keeps_the_mode_before(heard: bool) -> None:
    url = f"memory://cancelled-upgrade-{next(_numbers)}"

    async def story() -> None:
        with lockfast.connect(url) as other:
            async with lockfast.aio.connect(url, ttl=0.6) as client:
                reader = other.rwlock("book").read().acquire()
                lease = await client.rwlock("book").update().acquire()
                (session,) = client._core.sessions()
                go_on = threading.Event() if heard else hold_up_looks(session)
                watch = other.watch("book", after=0)
                upgrade = asyncio.create_task(lease.upgrade())
                await asyncio.to_thread(until_converting, watch)
                reader.release()  # blocks the loop: the store grants, the task does not run
                if heard:
                    block_until(lambda: lease._holding.mode == "exclusive")
                upgrade.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await upgrade
                go_on.set()
                block_until(lambda: [c.mode for c in other.inspect("book").holders] == ["update"])
                renewals = renewals_of(other, lease.session)
                block_until(lambda: renewals_of(other, lease.session) >= renewals + 2)
                assert lease.state is LeaseState.HELD
                assert lease.token == other.inspect("book").holders[0].token
                await lease.release()

    asyncio.run(story())


def until_converting(watch: Any) -> None:
    while next(watch).what != "converting":
        pass


def renewals_of(client: lockfast.Client, session: str) -> int:
    return next(each.renewals for each in client.sessions() if each.session == session)


def block_until(true: Callable[[], bool]) -> None:
    """Wait with the loop blocked: only keepers run."""
    give_up = time.monotonic() + 30
    while not true():
        assert time.monotonic() < give_up
        time.sleep(0.001)


def hold_up_looks(session: Any) -> threading.Event:
    """Keep the keeper from reading its claims until the event is set."""
    go_on = threading.Event()
    table = session.listener._source
    apply = table.apply

    def held_up(command: Any) -> Any:
        if isinstance(command, Look):
            go_on.wait(30)
        return apply(command)

    table.apply = held_up
    return go_on
