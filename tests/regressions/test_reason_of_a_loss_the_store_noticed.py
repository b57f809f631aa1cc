"""The reason of a loss depended on whether the client or the store noticed it first.

Client and store both measure the TTL and max_hold. If the store was first, its reply gives the
same reason, but observers and metrics got `ended` for an expired session and `missing` for a
claim whose max_hold had elapsed.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

import lockfast
from lockfast import Lease
from lockfast.core.commands import Ended
from lockfast.core.reasons import EXPIRED, LOST_EXPIRED, LOST_MAX_HOLD, MAX_HOLD_ELAPSED
from lockfast.events import LeaseLost


def claim_ended(lease: Lease) -> None:
    assert lease._holding.session is not None
    lease._holding.session.lost(lease._holding, MAX_HOLD_ELAPSED)


def session_ended(lease: Lease) -> None:
    assert lease._holding.session is not None
    lease._holding.session.ended_by_store(Ended(EXPIRED))


@pytest.mark.parametrize(
    ("end", "why"), [(claim_ended, LOST_MAX_HOLD), (session_ended, LOST_EXPIRED)]
)
def test_the_reason_does_not_depend_on_who_was_first(
    end: Callable[[Lease], None], why: str
) -> None:
    seen: list[object] = []
    with (
        lockfast.observe(seen.append) as subscription,
        lockfast.connect("memory://", owner="first") as client,
    ):
        lease = client.lock("a", max_hold=60).acquire()
        end(lease)
        assert lease.lost.is_set()
        assert subscription.flush()
    (lost,) = [
        event for event in seen if isinstance(event, LeaseLost) and event.token == lease.token
    ]
    assert lost.why == why
