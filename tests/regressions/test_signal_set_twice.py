"""A waiter failed with RuntimeError when its signal was set again at the moment it woke.

Waiting means acquiring a lock that `set` releases, and releasing it at once. A second `set` between
the two released the lock that the waiter had just acquired. The waiter was a caller in `acquire`,
or a keeper of the memory store, whose whole session then ended.
"""

from __future__ import annotations

import threading

from lockfast.runtimes.threads import ThreadSignal


class SetAgainAtOnce:
    """A lock that is released by another as soon as it is acquired."""

    def __init__(self) -> None:
        self._lock = threading.Lock()

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        taken = self._lock.acquire(blocking, timeout)
        self._lock.release()
        return taken

    def release(self) -> None:
        self._lock.release()


def test_waiter_survives_a_second_set() -> None:
    signal = ThreadSignal()
    signal._lock = SetAgainAtOnce()  # type: ignore[assignment]

    assert not signal.wait_blocking(1)  # woken although nothing was set: the caller checks again

    signal.set()
    assert signal.wait_blocking(None)
