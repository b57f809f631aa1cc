"""A run that began just before it was looked up has not ended.

`once(wait=True)` starts to watch, and then looks who runs the job. If another run was granted in
between, its grant is among the events, and was taken for its end: the caller was told that the run
had failed while it was still at work.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from threading import Event
from typing import Any

import pytest

from lockfast import Outcome
from lockfast.flow.watch import Watcher
from lockfast.testing import ControlledStore

PATIENCE_S = 60.0
WINDOW: dict[str, Any] = {"at_least": 1, "at_most": 3600, "ttl": 3600, "wait": True}


@pytest.mark.parametrize("face", ["blocking", "aio"])
def test_it_is_waited_for(
    face: str, monkeypatch: pytest.MonkeyPatch, lockfast_store: ControlledStore
) -> None:
    first, second = (lockfast_store.connect().once("migrate", **WINDOW) for _ in range(2))
    waiting: Any = lockfast_store.connect() if face == "blocking" else lockfast_store.connect_aio()
    begun, goes_on = Event(), Event()

    def migrate() -> str:
        begun.set()
        assert goes_on.wait(PATIENCE_S)
        return "migrated"

    async def unused() -> None:
        raise AssertionError("it ran twice")

    def wait() -> Any:
        once = waiting.once("migrate", **WINDOW)
        return once.run(migrate) if face == "blocking" else asyncio.run(once.run(unused))

    earlier = first._take()
    assert not isinstance(earlier, Outcome)
    start, wait_for_events = Watcher.start, Watcher.next
    with ThreadPoolExecutor(2) as threads:

        async def start_and_hand_over(watcher: Watcher) -> None:
            await start(watcher)
            monkeypatch.setattr(Watcher, "start", start)
            lockfast_store.clock.advance(2)
            earlier.release()
            runs.append(threads.submit(second.run, migrate))
            assert begun.wait(PATIENCE_S)

        async def wait_while_it_runs(watcher: Watcher) -> Any:
            event = await wait_for_events(watcher)
            if event is not None and event.what == "granted":
                goes_on.set()
            return event

        runs: list[Any] = []
        monkeypatch.setattr(Watcher, "start", start_and_hand_over)
        monkeypatch.setattr(Watcher, "next", wait_while_it_runs)
        outcome = wait()
        goes_on.set()
        assert runs[0].result(PATIENCE_S) == (Outcome.RAN, "migrated")
        assert outcome == (Outcome.DONE, None)
