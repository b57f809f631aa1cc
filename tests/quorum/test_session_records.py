"""A client's records: its ballots, and what it asks of a node that has lost claims."""

from __future__ import annotations

import pytest

from lockfast.core.commands import Open, Place
from lockfast.runtimes.threads import ThreadsRuntime
from lockfast.stores.quorum.messages import Take
from lockfast.stores.quorum.session_records import Claim, Phase, SessionRecord, SessionRecords


@pytest.mark.parametrize(
    ("phase", "max_hold_ms", "restore"),
    [
        (Phase.HELD, 0, True),
        (Phase.HELD, 500, False),
        (Phase.PROPOSED, 0, False),
        (Phase.LOST, 0, False),
        (Phase.LEAVING, 0, False),
    ],
)
def test_a_node_takes_over_only_held_claims_without_max_hold(
    phase: Phase, max_hold_ms: int, restore: bool
) -> None:
    """It must not release the others, but only the grant knows when a max_hold began."""
    take = Take("s", 1, "lock", "a", 17, max_hold_ms=max_hold_ms)
    record = SessionRecord(Open("s", 1000, "", "", "", ""))
    record.claims[1] = Claim(Place("lock", "a", "exclusive"), take, 0, phase)
    (restored,) = record.restored()
    assert restored[:4] == (1, "lock", "a", 17)
    assert restored.restore is restore


def test_no_ballot_is_proposed_twice_even_if_the_clock_goes_back() -> None:
    """A late release of the first would otherwise release the second."""
    wall_us = 1_000
    records = SessionRecords(3, ThreadsRuntime().mutex(), lambda: wall_us)
    first = [records.next_ballot() for _ in range(3)]
    assert first == [1_000, 1_001, 1_002]
    wall_us = 999
    assert [records.next_ballot() for _ in range(3)] == [999, 1_003, 1_004]
    records.heard(2_000)
    assert records.next_ballot() == 2_001
