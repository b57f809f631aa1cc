"""A grant published before a session's subscription was active was found a third of a TTL later.

After subscribing, the listener checked the claims that were known to wait. A claim whose Queued
reply had not been read yet was not among them.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

import lockfast
from lockfast.core.commands import Command, Queued, Renewed, Reply
from lockfast.flow.session import Session
from lockfast.stores.redis.wake_listener import RedisWakeListener
from lockfast.stores.redis.wire import BlockingWire
from tests.servers.redis import RedisServer

PATIENCE_S = 30.0
TTL = 3600.0
"""So long that no keep-alive comes in time."""


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    with RedisServer() as started:
        yield started


def test_a_claim_granted_before_its_session_listens_learns_of_it(
    server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_line, subscribing, told, checked, reading = (threading.Event() for _ in range(5))
    send, subscribe = BlockingWire.send, RedisWakeListener._reconnect
    wakes_missed = Session.wakes_missed
    waits: list[str] = []

    async def send_slowly(wire: BlockingWire, command: Command, timeout_ms: int) -> Reply:
        reply = await send(wire, command, timeout_ms)
        if isinstance(reply, Queued):
            in_line.set()
            assert reading.wait(PATIENCE_S)
        if isinstance(reply, Renewed) and told.is_set():
            checked.set()
        return reply

    def subscribe_late(listener: RedisWakeListener, until_s: float | None) -> bool:
        return subscribing.is_set() and subscribe(listener, until_s)

    def note(session: Session) -> None:
        wakes_missed(session)
        if session.id in waits:
            told.set()

    url = server.url()
    monkeypatch.setattr(BlockingWire, "send", send_slowly)
    monkeypatch.setattr(RedisWakeListener, "_reconnect", subscribe_late)
    monkeypatch.setattr(Session, "wakes_missed", note)
    with lockfast.connect(url, ttl=TTL) as holder, lockfast.connect(url, ttl=TTL) as waiter:
        held = holder.lock("orders/42").acquire()
        opened = waiter.lock("another").acquire()
        got: list[lockfast.Lease] = []
        thread = threading.Thread(target=lambda: got.append(waiter.lock("orders/42").acquire()))
        thread.start()
        assert in_line.wait(PATIENCE_S)
        held.release()  # the waiter is granted the lock and does not receive the wake
        waits[:] = [waiter._core.sessions()[0].id]
        subscribing.set()
        assert checked.wait(PATIENCE_S), "the keeper has checked the claims it knows to wait"
        reading.set()
        thread.join(PATIENCE_S)
        assert got, "it was granted the lock and does not know"
        got[0].release()
        opened.release()
