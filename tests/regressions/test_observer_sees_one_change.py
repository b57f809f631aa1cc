"""An observer saw a vacancy between two leaders if a candidate ended with the first leader.

The log has the leader's end, then the candidates that ended with it, then the new leader; only an
immediate successor was recognized as a hand-over.
"""

from __future__ import annotations

import threading
import time

import lockfast


def test_leader_and_candidate_end_together() -> None:
    url = "memory://one-change"
    with lockfast.connect(url) as both, lockfast.connect(url) as third:
        election = third.election("chair")
        term = both.election("chair").campaign("first")
        again = threading.Thread(target=campaign, args=(both, "second"))
        again.start()
        await_candidates(third, 1)
        heir = threading.Thread(target=campaign, args=(third, "third"))
        heir.start()
        await_candidates(third, 2)
        seen = election.observe()
        assert [leader.value for leader in [next(seen)] if leader] == ["first"]
        third.revoke(session=term.session, reason="enough")
        changed = next(seen)
        assert changed is not None
        assert changed.value == "third"
        heir.join(30)
        again.join(30)


def campaign(client: lockfast.Client, value: str) -> None:
    client.election("chair").campaign(value).resign()


def await_candidates(client: lockfast.Client, count: int) -> None:
    give_up = time.monotonic() + 30
    while client.inspect("chair", kind="election").waiting_count < count:
        assert time.monotonic() < give_up
        time.sleep(0.002)
