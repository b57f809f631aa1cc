"""What `inspect` and its relatives tell about a claim."""

from __future__ import annotations

from lockfast.core.commands import HOLDING, ClaimView, Place, ResourceView
from lockfast.flow.admin import _claim_info


def test_a_claim_granted_in_the_future_is_shown_as_granted_now() -> None:
    """A client may know the store's clock only by a lower bound (ZooKeeper)."""
    place = Place("lock", "a", "exclusive")
    claim = ClaimView("s", 1, "owner", "actor", (place,), HOLDING, 7, 0, None, -3, 1000)
    found = _claim_info(claim, ResourceView("lock", "a", (claim,), (), 1, 0, 0, 0))
    assert found.seconds == 0
