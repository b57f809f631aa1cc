"""A lease whose max_hold was ended by the store first was reported as `missing`.

Client and store both measure max_hold. If the store was first, its reply says that the limit has
elapsed, but observers and metrics got the reason for a claim without a record.
"""

from __future__ import annotations

import lockfast
from lockfast.core.reasons import LOST_MAX_HOLD, MAX_HOLD_ELAPSED
from lockfast.events import LeaseLost


def test_the_reason_does_not_depend_on_who_was_first() -> None:
    lost: list[object] = []
    with (
        lockfast.observe(lost.append) as subscription,
        lockfast.connect("memory://", owner="first") as client,
    ):
        lease = client.lock("a", max_hold=60).acquire()
        session = lease._holding.session
        assert session is not None
        session.lost(lease._holding, MAX_HOLD_ELAPSED)
        assert lease.lost.is_set()
        assert subscription.flush()
    (event,) = [
        event for event in lost if isinstance(event, LeaseLost) and event.token == lease.token
    ]
    assert event.why == LOST_MAX_HOLD
