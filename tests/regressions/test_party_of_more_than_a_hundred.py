"""`members()` returned only the first hundred members."""

from __future__ import annotations

import lockfast


def test_all_members_are_named() -> None:
    with lockfast.connect("memory://large-party") as client:
        party = client.party("fleet")
        memberships = [party.join(f"node-{at}") for at in range(250)]
        assert [member.value for member in party.members()] == [f"node-{at}" for at in range(250)]
        for membership in memberships:
            membership.leave()
        assert party.members() == ()
