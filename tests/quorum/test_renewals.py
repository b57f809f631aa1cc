"""A keep-alive to all nodes: when it is done, and which nodes are out of date afterwards."""

from __future__ import annotations

from lockfast.core.commands import Open, Place
from lockfast.runtimes.threads import ThreadsRuntime
from lockfast.stores.memory import wall_us
from lockfast.stores.quorum.flights import Progress
from lockfast.stores.quorum.messages import OK, Kept, Take
from lockfast.stores.quorum.session_records import Claim, Phase, SessionRecord, SessionRecords
from lockfast.stores.quorum.wire import Renewal

NODES = 3


def renewal_of(phase: Phase) -> tuple[SessionRecord, Renewal, list[Kept]]:
    """Return a renewal for a claim that nodes 0 and 1 have, and the answers that confirm it."""
    records = SessionRecords(NODES, ThreadsRuntime().mutex(), wall_us)
    record = records.session(Open("s", 60_000, "own"))
    take = Take("s", 1, "lock", "a", 17)
    record.claims[1] = Claim(Place("lock", "a", "exclusive"), take, 0, phase, {0, 1})
    answers = [Kept(OK, "", *record.account_at(node)) for node in range(NODES)]
    return record, Renewal(records, record, 0), answers


def test_a_held_claim_needs_a_majority_of_those_that_have_it() -> None:
    _, renewal, (_, has, lacks) = renewal_of(Phase.HELD)
    assert renewal.judge([None, has, lacks]) is Progress.SOON
    assert renewal.judge([has, has, None]) is Progress.DONE


def test_a_node_without_a_held_claim_is_out_of_date() -> None:
    record, renewal, answers = renewal_of(Phase.HELD)
    for node, answer in enumerate(answers):
        renewal.late(node, answer)
    assert record.outdated == {2}


def test_a_claim_that_is_not_held_needs_no_confirmation() -> None:
    record, renewal, (_, has, lacks) = renewal_of(Phase.PROPOSED)
    assert renewal.judge([None, has, lacks]) is Progress.DONE
    renewal.late(2, lacks)
    assert record.outdated == set()
