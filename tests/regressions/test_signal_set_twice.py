"""A waiter died of RuntimeError when its signal was set again the moment it woke.

To wait is to take a lock that `set` releases, and to give it back at once. A second `set`
between these two released the lock under the waiter's hands. The waiter was a caller in
`acquire`, or a keeper of the memory store, and then its whole session was over.
"""

from __future__ import annotations

import threading

from lockfast.runtimes.threads import ThreadSignal


class SetAgainAtOnce:
    """A lock that somebody else releases as soon as it is taken."""

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

    assert not signal.wait_blocking(1)  # woken, though nothing was set: the caller looks again

    signal.set()
    assert signal.wait_blocking(None)
