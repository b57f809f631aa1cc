"""A timeout named a waiter as the holder, and never said how many claims were ahead.

The store tells a waiting claim which claim is before it, and that may be another waiter. And every
timeout after a wait said that the place in the queue was still being released.
"""

from __future__ import annotations

import threading

import pytest

import lockfast
from lockfast.core.commands import Leave
from tests.api.worlds import CuttableStore, fresh_url, use
from tests.processes.crew import until


def test_third_in_line() -> None:
    url = fresh_url()
    with (
        lockfast.connect(url, owner="holder") as holder,
        lockfast.connect(url, owner="waiter") as waiter,
        lockfast.connect(url, owner="late") as late,
    ):
        held = holder.lock("a").acquire()
        first = threading.Thread(target=lambda: waiter.lock("a").acquire().release())
        first.start()
        until(lambda: holder.inspect("a").waiting_count == 1, "one waits")
        with pytest.raises(lockfast.AcquireTimeoutError) as caught:
            late.lock("a").acquire(timeout=0.05)
        error = caught.value
        assert [text.split(" (")[0] for text in error.holders] == ["holder"]
        assert error.ahead == 1
        assert f"held by holder (token {held.token}" in str(error)
        assert "1 ahead in the queue" in str(error)
        assert not error.leaving
        assert "in the background" not in str(error)
        assert holder.inspect("a").waiting_count == 1, "it has left when it raises"
        with pytest.raises(lockfast.AcquireTimeoutError) as caught:
            late.lock("a").acquire(timeout=0)
        assert caught.value.holders == ()
        assert caught.value.ahead == 1
        held.release()
        first.join(30)


def test_first_in_line() -> None:
    with lockfast.connect(fresh_url(), owner="holder") as holder:
        with holder.lock("a"), pytest.raises(lockfast.AcquireTimeoutError) as caught:
            holder.lock("a").acquire(timeout=0.05)
        assert caught.value.holders[0].startswith("holder (token ")
        assert caught.value.ahead == 0
        assert "ahead in the queue" not in str(caught.value)


def test_a_permit_has_no_token() -> None:
    with lockfast.connect(fresh_url(), owner="holder") as holder:
        semaphore = holder.semaphore("a", limit=1)
        with semaphore, pytest.raises(lockfast.AcquireTimeoutError, match="held by") as caught:
            semaphore.acquire(timeout=0.05)
        assert "token" not in str(caught.value)


def test_a_place_that_cannot_be_left_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    store = CuttableStore()
    use(monkeypatch, store)
    with lockfast.connect("memory://") as client:
        held = client.lock("a").acquire()
        store.cut(Leave)
        with pytest.raises(
            lockfast.AcquireTimeoutError, match="removed from the queue in the background"
        ) as caught:
            client.lock("a").acquire(timeout=0.05)
        assert caught.value.leaving
        store.mend()
        until(lambda: client.inspect("a").waiting_count == 0, "the keeper gives it back")
        held.release()
