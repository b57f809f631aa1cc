"""A waiter slept past the end of a `lock_delay`, up to a third of its TTL.

It knew when the holder expires at the latest. When the holder was lost before that and the lock was
closed for a while, the waiter was not told when the lock opens.
"""

from __future__ import annotations

import threading
import time

import lockfast


def test_a_waiter_is_there_when_the_lock_opens() -> None:
    url = "memory://waiter-at-a-closed-lock"
    with lockfast.connect(url, ttl=3600) as one, lockfast.connect(url, ttl=3600) as two:
        lease = one.lock("a", lock_delay=0.05).acquire()
        tokens: list[int] = []

        def wait() -> None:
            with two.lock("a") as theirs:
                tokens.append(theirs.token)

        waiter = threading.Thread(target=wait)
        waiter.start()
        give_up = time.monotonic() + 30
        while two.inspect("a").waiting_count == 0:
            assert time.monotonic() < give_up
            time.sleep(0.002)
        two.revoke("a", reason="enough")
        assert lease.lost.wait(30)
        waiter.join(30)  # the next keep-alive is twenty minutes away
        assert tokens
        assert tokens[0] > lease.token
