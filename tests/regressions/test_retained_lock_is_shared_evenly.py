"""A contended retained lock gave most of its uses to the client that was notified last.

Clients whose grant said that others wait used it once. A client granted just before the others came
used it hundreds of times, until its keeper's thread ran and delivered the wake.
"""

from __future__ import annotations

import threading
from itertools import count
from typing import Any

import pytest

import lockfast
from lockfast.core.commands import Look
from lockfast.errors import StoreUnavailableError
from lockfast.flow.retained import LOOK_AFTER_USES
from lockfast.flow.session import Session
from tests.primitives.world import Counter, core_of
from tests.processes.crew import until

NAME = "orders"


def waiter(client: lockfast.Client) -> threading.Thread:
    """Return a thread that uses the lock once, as soon as it gets it."""

    def use() -> None:
        with client.lock(NAME):
            pass

    thread = threading.Thread(target=use)
    thread.start()
    return thread


def line_up(client: lockfast.Client, waiting: int) -> None:
    until(lambda: client.inspect(NAME).waiting_count == waiting, f"{waiting} to wait")


def test_a_client_asks_whether_others_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without wakes to its keeper: count the uses of one grant while another client waits."""
    url = "memory://shared-evenly"
    with lockfast.connect(url) as client, lockfast.connect(url) as other:
        lock = client.lock(NAME, retain=True)
        in_demand(client, other)
        lease = lock.acquire()
        monkeypatch.setattr(Session, "wanted", lambda session, n: None)
        waiting = waiter(other)
        line_up(client, 1)
        lease.release()
        for uses in count(1):
            token = lease.token
            lease = lock.acquire()
            lease.release()
            if lease.token != token + 1:
                break  # it was another grant
            assert uses <= LOOK_AFTER_USES
        waiting.join(30)
        assert not waiting.is_alive()


def in_demand(client: lockfast.Client, other: lockfast.Client) -> None:
    """Have the client's retained lock granted while others already wait behind it."""
    with other.lock(NAME):
        retaining = threading.Thread(
            target=lambda: client.lock(NAME, retain=True).acquire().release()
        )
        retaining.start()
        line_up(other, 1)
        behind = waiter(other)
        line_up(other, 2)
    for thread in (retaining, behind):
        thread.join(30)
        assert not thread.is_alive()


def test_it_asks_less_often_the_longer_nobody_waits() -> None:
    """In a thousand uses after it was contended, the store is asked only a few times."""
    url = "memory://shared-alone"
    with lockfast.connect(url) as client, lockfast.connect(url) as other:
        in_demand(client, other)
        lock = client.lock(NAME, retain=True)
        counter = Counter(client)
        for _ in range(16 * LOOK_AFTER_USES):
            lock.acquire().release()
        assert counter.names() == ["Enter", *["Look"] * 5]


def test_a_release_does_not_fail_because_the_store_cannot_be_asked() -> None:
    url = "memory://shared-unasked"
    with lockfast.connect(url) as client, lockfast.connect(url) as other:
        in_demand(client, other)
        lock = client.lock(NAME, retain=True)
        wire = core_of(client).wire
        send = wire.send
        refused: list[Look] = []

        async def refuse_looks(command: Any, timeout_ms: int) -> Any:
            if isinstance(command, Look):
                refused.append(command)
                raise StoreUnavailableError(url, "does not answer", "try again")
            return await send(command, timeout_ms)

        wire.send = refuse_looks
        for _ in range(2 * LOOK_AFTER_USES):
            lock.acquire().release()
        assert len(refused) == 2
