"""An upgrade refused to resolve a deadlock reported only "another holder waits for this one".

The detector knew, and had stored, which lock that holder waits for and who holds it.
"""

from __future__ import annotations

import threading

import pytest

import lockfast


def test_each_lock_of_the_cycle_is_named() -> None:
    url = "memory://conversion-cycle"
    with (
        lockfast.connect(url, owner="alice", deadlock_after=0.01) as alice,
        lockfast.connect(url, owner="bob", deadlock_after=60) as bob,
    ):
        reader = alice.rwlock("book", priority=-1).read().acquire()
        pen = alice.lock("pen").acquire()

        def read_and_wait() -> None:
            with bob.rwlock("book").read(), bob.lock("pen"):
                pass

        other = threading.Thread(target=read_and_wait)
        other.start()
        while not alice.inspect("pen").waiting_count:
            pass  # until bob is queued

        with pytest.raises(lockfast.DeadlockError) as caught:
            reader.upgrade(timeout=60)

        assert "waits for lock 'pen', where alice" in str(caught.value)
        assert "waits for lock 'book', where bob" in str(caught.value)
        pen.release()
        reader.release()
        other.join(60)
