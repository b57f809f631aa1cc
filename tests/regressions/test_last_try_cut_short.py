"""The final error contains what the store said, even if the last attempt got no reply.

The last attempt has only the few milliseconds that are left, and often ends with "did not answer in
time". Only that was raised, although every earlier attempt had been told the cause.
"""

from __future__ import annotations

import re

import pytest

import lockfast
from lockfast.core.commands import Command, Reply
from lockfast.ports import Wire
from lockfast.runtimes.platform import now_ms
from lockfast.runtimes.threads import ThreadsRuntime
from lockfast.stores.memory import MemoryStore, MemoryTable
from tests.api.worlds import use

SAID = "(before that: the disk is full, make room)"


class FullStore(MemoryStore):
    """Refuses every request but the second, which it does not answer before the timeout."""

    def __init__(self) -> None:
        super().__init__(MemoryTable(now_ms), ThreadsRuntime())
        self.asked = 0

    def caller_wire(self) -> Wire:
        return _FullWire(self)


class _FullWire:
    def __init__(self, store: FullStore) -> None:
        self._store = store

    async def send(self, command: Command, timeout_ms: int) -> Reply:
        self._store.asked += 1
        if self._store.asked == 2:
            await ThreadsRuntime().signal().wait(timeout_ms)
            raise lockfast.OutcomeUnknownError("full://", "did not answer in time")
        raise lockfast.StoreUnavailableError("full://", "the disk is full", "make room")

    def close(self) -> None:
        pass


def test_an_acquire_that_gives_up(monkeypatch: pytest.MonkeyPatch) -> None:
    store = FullStore()
    use(monkeypatch, store)
    with lockfast.connect("memory://", ttl=1) as client:
        with pytest.raises(lockfast.OutcomeUnknownError, match=re.escape(SAID)):
            client.lock("a").acquire(timeout=2)
    assert store.asked == 2


def test_a_request_that_gives_up(monkeypatch: pytest.MonkeyPatch) -> None:
    store = FullStore()
    use(monkeypatch, store)
    with lockfast.connect("memory://", connect_timeout=2) as client:
        with pytest.raises(lockfast.OutcomeUnknownError, match=re.escape(SAID)):
            client.inspect("a")
    assert store.asked == 2


def test_what_is_said_again_and_again_is_told_once(monkeypatch: pytest.MonkeyPatch) -> None:
    store = FullStore()
    store.asked = 2
    use(monkeypatch, store)
    with lockfast.connect("memory://", connect_timeout=0.2) as client:
        with pytest.raises(lockfast.StoreUnavailableError) as caught:
            client.inspect("a")
    assert str(caught.value) == "full://: the disk is full; make room"
