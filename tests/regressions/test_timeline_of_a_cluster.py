"""A member of a cluster that crashed is drawn on the timeline, although it has no lane there.

`lockfast simulate` ended with a KeyError after every run of etcd in which a member crashed, also
with seeds that the track record tells its readers to run.
"""

from __future__ import annotations

from lockfast.sim.timeline import svg


def test_a_member_without_a_lane() -> None:
    entries = [
        {"at": 1000, "fault": "store_crash", "on": "m1"},
        {"at": 2000, "resumed": "m1"},
    ]
    assert 'class="pause"' in svg(entries)
