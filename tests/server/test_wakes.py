"""Listeners of sessions, on a store that has no listener for all of them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from lockfast.core.commands import WAKE_GRANTED, Blocker, Wake
from lockfast.server import wakes
from lockfast.server.wakes import Wakes


class Listener:
    def __init__(self) -> None:
        self.inbox = "here"
        self._interrupted = threading.Event()
        self.closed = threading.Event()

    async def listen(self, timeout_ms: int) -> Sequence[Wake]:
        self._interrupted.wait(30)
        return ()

    def watch_over(self, n: int, ahead: Sequence[Blocker]) -> None:
        pass

    def interrupt(self) -> None:
        self._interrupted.set()

    def close(self) -> None:
        self.closed.set()


def test_listeners_of_abandoned_sessions_are_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise each client that dies, and each id that a client invents, costs a thread."""
    now_s = 100.0
    monkeypatch.setattr(wakes, "time", SimpleNamespace(monotonic=lambda: now_s))
    made: dict[str, Listener] = {}

    def listener(session: str, deliver: Any) -> Listener:
        return made.setdefault(session, Listener())

    async def scenario() -> None:
        nonlocal now_s
        store: Any = SimpleNamespace(wake_listener=listener)
        heard = Wakes(store)
        for session in ("dead", "renewed", "streaming"):
            heard.inbox_of(session, 300)
        with heard.hearing("invented", lambda wake: None):
            pass
        with heard.hearing("streaming", lambda wake: None):
            now_s += 200
            heard.is_used("renewed")
            now_s += 200
            heard.inbox_of("another", 300)
            for session in ("dead", "invented"):
                assert made[session].closed.wait(30)
            assert heard._separate.keys() == {"renewed", "streaming", "another"}
        heard.close()

    asyncio.run(scenario())
    assert all(one.closed.wait(30) for one in made.values())


def test_every_wake_of_a_session_is_heard_on_the_event_loop() -> None:
    """Also those that arrive after the first were heard."""
    delivers: list[Callable[[Wake], None]] = []

    def listener(session: str, deliver: Callable[[Wake], None]) -> Listener:
        delivers.append(deliver)
        return Listener()

    async def scenario() -> None:
        store: Any = SimpleNamespace(wake_listener=listener)
        wakes = Wakes(store)
        heard: asyncio.Queue[Wake] = asyncio.Queue()
        with wakes.hearing("s", heard.put_nowait):
            for n in (1, 2):
                wake = Wake("here", "s", n, WAKE_GRANTED, 17)
                delivers[0](wake._replace(session="other"))
                await asyncio.to_thread(delivers[0], wake)
                async with asyncio.timeout(30):
                    assert await heard.get() == wake
        wakes.close()

    asyncio.run(scenario())
