"""A queued claim waits through an outage, even one that is longer than its session's TTL.

When its session has ended the claim enters again, and it then gave up after `connect_timeout`, as
if it had never reached the store: a waiter without a timeout got StoreUnavailableError. The error
of one with a timeout did not say what was wrong with the store, nor what to do.
"""

from __future__ import annotations

import threading

import pytest

import lockfast
from tests.api.worlds import CuttableStore, use
from tests.processes.crew import until


def holder_and_waiter(
    monkeypatch: pytest.MonkeyPatch,
) -> tuple[CuttableStore, lockfast.Client, lockfast.Client]:
    """Return two clients of one table, and the waiter's store, whose connection can be cut."""
    store = CuttableStore()
    use(monkeypatch, CuttableStore(table=store.table))
    holder = lockfast.connect("memory://")
    use(monkeypatch, store)
    waiter = lockfast.connect("memory://", ttl=0.3, connect_timeout=0.05)
    return store, holder, waiter


def test_a_waiter_enters_again_when_the_store_is_back(monkeypatch: pytest.MonkeyPatch) -> None:
    store, holder, waiter = holder_and_waiter(monkeypatch)
    held = holder.lock("a").acquire()
    taken: list[lockfast.Lease] = []
    thread = threading.Thread(target=lambda: taken.append(waiter.lock("a").acquire()))
    thread.start()
    until(lambda: holder.inspect("a").waiting_count == 1, "it waits")
    store.cut()
    until(lambda: holder.inspect("a").waiting_count == 0, "its session is over")
    refused = len(store.refused)
    until(lambda: len(store.refused) > refused + 3, "it tries again and again")
    store.mend()
    until(lambda: holder.inspect("a").waiting_count == 1, "it waits again")
    held.release()
    thread.join(30)
    taken.pop().release()
    waiter.close()
    holder.close()


def test_a_waiter_that_gives_up_says_what_the_store_said_last(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store, holder, waiter = holder_and_waiter(monkeypatch)
    held = holder.lock("a").acquire()
    told: list[lockfast.AcquireTimeoutError] = []

    def wait() -> None:
        with pytest.raises(lockfast.AcquireTimeoutError) as caught:
            waiter.lock("a").acquire(timeout=3)
        told.append(caught.value)

    thread = threading.Thread(target=wait)
    thread.start()
    until(lambda: holder.inspect("a").waiting_count == 1, "it waits")
    store.cut()
    thread.join(30)
    assert told[0].trouble == "memory://: the connection is cut"
    assert told[0].trouble in str(told[0])
    held.release()
    store.mend()
    waiter.close()
    holder.close()
