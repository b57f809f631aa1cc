"""What every platform must do: run on the real macOS and Windows by the CI matrix."""

from __future__ import annotations

import asyncio
import sys
import threading
from pathlib import Path

import pytest

import lockfast
import lockfast.aio
from lockfast.runtimes import platform
from lockfast.stores.waker import Waker


def test_the_clock_of_leases_rises() -> None:
    first_us, first_ms = platform.now_us(), platform.now_ms()
    assert 0 < first_us <= platform.now_us()
    assert abs(first_us // 1000 - first_ms) < 10_000


@pytest.mark.parametrize("make", [platform.poll, platform.SelectPoll])
def test_polling_reports_what_can_be_read(make: type[platform.SelectPoll]) -> None:
    waker = Waker()
    try:
        poll = make()
        poll.register(waker, platform.POLLIN)
        assert poll.poll(0) == []
        assert poll.poll(1) == []
        waker.interrupt()
        assert poll.poll(None) == [(waker.fileno(), platform.POLLIN)]
        waker.take()
        assert poll.poll(0) == []
        poll.register(waker, platform.POLLOUT)
        assert poll.poll(None) == [(waker.fileno(), platform.POLLOUT)]
        poll.unregister(waker)
        assert poll.poll(1) == []
    finally:
        waker.close()


def test_a_lock_is_handed_over_between_threads() -> None:
    with lockfast.connect("memory://any-platform") as client:
        lease = client.lock("a").acquire()
        tokens = []

        def take() -> None:
            with client.lock("a") as other:
                tokens.append(other.token)

        waiter = threading.Thread(target=take)
        waiter.start()
        lease.release()
        waiter.join(20)
        assert tokens
        assert tokens[0] > lease.token


def test_a_lock_is_taken_on_the_platforms_own_event_loop() -> None:
    async def take() -> int:
        async with lockfast.aio.connect("memory://any-platform") as client:
            async with client.lock("a") as lease:
                return lease.token

    assert asyncio.run(take()) > 0


def test_the_embedded_store_works_or_names_others(tmp_path: Path) -> None:
    url = (tmp_path / "locks" / "locks.db").as_posix()
    if sys.platform == "win32":
        with pytest.raises(lockfast.UnsupportedError, match="redis://"):
            lockfast.connect(f"sqlite:///{url}")
        return
    with lockfast.connect(f"sqlite://{url}") as client, client.lock("a") as lease:
        assert lease.token > 0


def test_exit_signals_exist() -> None:
    assert platform.exit_signals()
