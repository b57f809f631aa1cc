"""A user that had lost a retained lock blocked all other users of the same client.

The local queue advanced only when that user released the lock, which may take as long as its work;
other processes could hold the lock before that.
"""

from __future__ import annotations

import threading

import pytest

import lockfast


def test_the_next_local_user_does_not_wait_for_the_loser() -> None:
    with lockfast.connect("memory://loser-of-a-kept-lock") as client:
        lock = client.lock("a", retain=True)
        lease = lock.acquire()
        client.revoke("a", reason="enough")
        assert lease.lost.wait(30)
        tokens: list[int] = []

        def follow() -> None:
            with lock.acquire(timeout=30) as next_lease:
                tokens.append(next_lease.token)

        follower = threading.Thread(target=follow)
        follower.start()
        follower.join(30)
        assert tokens
        assert tokens[0] > lease.token
        with pytest.raises(lockfast.LeaseLostError):
            lease.release()
