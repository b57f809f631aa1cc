"""`on_lost` on leases of a kept lock was remembered for ever, one more with every use.

The claim outlives the lease of each of its users, and so did their callbacks.
"""

from __future__ import annotations

import lockfast


def test_a_lease_that_is_given_back_is_forgotten() -> None:
    with lockfast.connect("memory://kept-callbacks") as client:
        lock = client.lock("a", retain=True)
        with lock as lease:
            before = len(lease._holding.on_over)

        for _ in range(3):
            with lock as lease:
                lease.on_lost(lambda lost: None)

        assert len(lease._holding.on_over) == before
