"""An observer that had read half of a step saw a vacancy between two leaders.

The log is read in parts. A part could end between a leader's end and its successor.
"""

from __future__ import annotations

from lockfast.core.commands import Event, EventsReply
from lockfast.flow.watch import _whole_steps


def event(position: int, wall_ms: int) -> Event:
    return Event(position, wall_ms, "granted", "lock", "a", "exclusive", "s", 1, "o", 1, "")


def test_a_step_that_goes_on_is_read_with_its_rest() -> None:
    events = (event(1, 10), event(2, 20), event(3, 20))
    assert _whole_steps(EventsReply(events, 9, 1, True)) == events[:1]
    assert _whole_steps(EventsReply(events, 3, 1, False)) == events


def test_a_step_longer_than_a_part_is_read_all_the_same() -> None:
    events = (event(1, 20), event(2, 20))
    assert _whole_steps(EventsReply(events, 9, 1, True)) == events
