"""An actor that held all permits of a semaphore and requested one more was refused only by the
deadlock detector, after a delay.

Permits exclude each other by weight and not by mode.
"""

from __future__ import annotations

import pytest

import lockfast


def test_told_at_once() -> None:
    with lockfast.connect("memory://own-permits", deadlock_after=3600) as client:
        api = client.semaphore("api", 2)
        with api, api:
            with pytest.raises(lockfast.DeadlockError):
                api.acquire()
