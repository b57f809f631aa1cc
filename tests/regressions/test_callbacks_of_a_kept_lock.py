"""`on_lost` callbacks on leases of a retained lock accumulated, one with every use.

The claim outlives the leases of its users, and so did their callbacks. A thread that waited for the
loss of such a lease was not told that it had been released.
"""

from __future__ import annotations

import threading

import lockfast


def test_a_lease_that_is_given_back_is_forgotten() -> None:
    with lockfast.connect("memory://kept-callbacks") as client:
        lock = client.lock("a", retain=True)
        with lock as lease:
            before = len(lease._holding.on_end)

        for _ in range(3):
            with lock as lease:
                lease.on_lost(lambda lost: None)

        assert len(lease._holding.on_end) == before


def test_a_release_ends_the_wait_for_a_loss() -> None:
    with lockfast.connect("memory://kept-wait") as client:
        lease = client.lock("a", retain=True).acquire()
        lost: list[bool] = []
        waiter = threading.Thread(target=lambda: lost.append(lease.lost.wait()))
        waiter.start()
        use = lease._use
        assert use is not None
        while not use.on_end:
            pass  # until it waits
        lease.release()
        waiter.join(30)
        assert lost == [False]
