"""Which TTL would have lost a lease: computed from synthetic keep-alives."""

from __future__ import annotations

from typing import Any

import pytest

from lockfast.sim.entries import Entries, HistoryError
from lockfast.sim.keep_alives import Cause, read_sessions
from lockfast.sim.ttl_advice import KEEP_ALIVES_MIN, Advice, advise

TTL_US = 9_000_000
"""So that a keep-alive is due every 3 s."""
S = 1_000_000
MS = 1000


class Recording:
    """A history with one session that holds a lease from 0."""

    def __init__(self) -> None:
        self.entries: list[dict[str, Any]] = []
        self.renew(0)
        self.note(at=MS, op=1, by="a", ask="acquire", places=[PLACE])
        self.note(at=MS, op=1, got="granted", token=7, session="s", n=1)

    def note(self, **entry: Any) -> None:
        self.entries.append(Entries().check(entry) if "op" not in entry else entry)

    def renew(self, sent: int, took: int = MS) -> None:
        self.note(at=sent + took, lives="s", until=sent + TTL_US, sent=sent)

    def renew_regularly(self, since: int, times: int) -> int:
        for n in range(1, times + 1):
            self.renew(since + n * 3 * S)
        return since + times * 3 * S

    def advise(self, *ttls_s: float) -> Advice:
        records = read_sessions(self.entries)
        return advise(records, ttls_s) if ttls_s else advise(records)


PLACE = {"kind": "lock", "name": "a", "mode": "exclusive"}


def lost_by_ttl(advice: Advice) -> dict[float, int]:
    return {each.ttl_s: each.lost for each in advice.candidates}


def test_a_pause_loses_the_leases_whose_slack_is_shorter() -> None:
    """A renewal is 4 s overdue. TTL 6 leaves 6 - 0.2 - 2 = 3.8 s of slack, TTL 6.4 leaves 4.05."""
    recording = Recording()
    recording.renew(3 * S + 4 * S)
    advice = recording.advise(6, 6.4, 9)
    assert lost_by_ttl(advice) == {6: 1, 6.4: 0, 9: 0}
    assert advice.gap_max_s == 7
    assert advice.stall_max is not None
    assert advice.stall_max.length_us == 4 * S + MS
    assert advice.stalls == {Cause.PAUSE: 1, Cause.FAILURES: 0, Cause.SLOW_REPLY: 0}


def test_a_lease_released_before_the_deadline_is_not_lost() -> None:
    """With TTL 6 the deadline would have been 3.8 s after the renewal was due, at 6.8 s."""
    for over_us, lost in ((6 * S, 0), (6_800_001, 1)):
        recording = Recording()
        recording.note(at=over_us, op=1, got="over", why="released")
        recording.renew(7 * S)
        assert lost_by_ttl(recording.advise(6)) == {6: lost}


def test_causes_are_told_apart() -> None:
    recording = Recording()
    recording.renew(6 * S)  # 3 s late
    recording.note(at=9 * S + 500 * MS, fails="s", sent=9 * S)
    recording.renew(11 * S)  # 2 s late, after a failure
    recording.renew(14 * S, took=S)
    advice = recording.advise()
    assert advice.stalls == {Cause.PAUSE: 1, Cause.FAILURES: 1, Cause.SLOW_REPLY: 1}
    assert (advice.failures, advice.reply_max_s) == (1, 1.0)


def test_a_session_that_gave_up_leaves_longer_ttls_unknown() -> None:
    recording = Recording()
    recording.note(at=8_700 * MS, ends="s", why="expired")
    recording.note(at=8_700 * MS, op=1, got="over", why="expired")
    advice = recording.advise(6, 9, 30)
    assert advice.stall_max is not None
    assert advice.stall_max.at_least
    assert advice.lost == 1
    assert [(each.lost, each.unknown) for each in advice.candidates] == [(1, 0), (1, 0), (0, 1)]


def test_a_process_that_was_stopped_past_its_deadline_is_known_to_the_end() -> None:
    recording = Recording()
    recording.note(at=23 * S, ends="s", why="expired")
    recording.note(at=23 * S, op=1, got="over", why="expired")
    advice = recording.advise(9, 30, 60)
    assert advice.stall_max is not None
    assert not advice.stall_max.at_least
    assert [(each.lost, each.unknown) for each in advice.candidates] == [(1, 0), (1, 0), (0, 0)]


def test_the_advice_survives_twice_the_longest_stall() -> None:
    """5 s overdue: 10 s of slack need a TTL of 15.8 s, so 20 is the first that suffices."""
    recording = Recording()
    at = recording.renew_regularly(0, KEEP_ALIVES_MIN)
    recording.renew(at + 3 * S + 5 * S - MS)
    advice = recording.advise()
    assert advice.ttl_s == 20
    assert "1 of 100 keep-alives" in advice.reason


def test_a_slow_store_raises_the_ttl_although_nothing_was_late() -> None:
    """A request may take a third of the TTL: twice the 2 s of a reply is 4 s, so a TTL of 12."""
    recording = Recording()
    at = recording.renew_regularly(0, KEEP_ALIVES_MIN)
    recording.renew(at + 2 * S, took=2 * S)
    assert recording.advise(9, 11.9, 12, 15).ttl_s == 12


def test_too_little_data_is_no_advice() -> None:
    recording = Recording()
    recording.renew_regularly(0, KEEP_ALIVES_MIN - 2)
    advice = recording.advise()
    assert advice.ttl_s is None
    assert "too little data: 299 keep-alives" in advice.reason


def test_no_candidate_is_long_enough() -> None:
    recording = Recording()
    at = recording.renew_regularly(0, KEEP_ALIVES_MIN)
    recording.renew(at + 3 * S + 500 * S)
    advice = recording.advise()
    assert advice.ttl_s is None
    assert "remove its cause" in advice.reason


def test_an_empty_history_is_no_advice() -> None:
    advice = advise(read_sessions([]))
    assert (advice.keep_alives, advice.ttl_s) == (0, None)


@pytest.mark.parametrize("about", [{}, {"sent": 10 * S}, {"sent": 2 * S}])
def test_keep_alives_without_valid_times_are_refused(about: dict[str, int]) -> None:
    """Recorded by an older version, or sent after the lease ended or after the reply."""
    entry = Entries().check({"at": S, "lives": "s", "until": 9 * S, **about})
    with pytest.raises(HistoryError, match="1 keep-alives have no valid time"):
        read_sessions([entry])


def test_a_session_that_was_cut_off_is_counted() -> None:
    assert Recording().advise().cut_off == 1
