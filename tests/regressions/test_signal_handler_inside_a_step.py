"""A signal handler that released a lease deadlocked if it interrupted the memory store.

The interrupted code held the store's mutex.
"""

from __future__ import annotations

import signal
from types import FrameType
from typing import Any

import pytest

import lockfast
from lockfast.core.table import Table


def test_the_handler_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[lockfast.OutcomeUnknownError] = []
    apply = Table.apply
    with lockfast.connect("memory://handler") as client:
        lease = client.lock("a").acquire()

        def handler(number: int, frame: FrameType | None) -> None:
            with pytest.raises(lockfast.OutcomeUnknownError) as caught:
                lease.release()
            told.append(caught.value)

        def interrupted(*args: Any) -> Any:
            monkeypatch.setattr(Table, "apply", apply)
            signal.raise_signal(signal.SIGUSR1)
            return apply(*args)

        before = signal.signal(signal.SIGUSR1, handler)
        try:
            monkeypatch.setattr(Table, "apply", interrupted)
            client.inspect("b")
        finally:
            signal.signal(signal.SIGUSR1, before)

        assert told
        client.lock("a").acquire(timeout=60).release()  # the keeper has released it
