"""Events of one step: whether the step that ended a term also began the next one."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from lockfast.core.commands import Event
from lockfast.flow.admin import watch_event
from lockfast.flow.watch import Watcher

RELEASED = Event(7, 5000, "released", "election", "a", "exclusive", "s-1", 1, "host", 17, "")
GRANTED = RELEASED._replace(position=8, what="granted", session="s-2", token=18)


@pytest.mark.parametrize(
    ("following", "expected"),
    [
        ((GRANTED,), True),
        ((RELEASED._replace(position=8, name="b"), GRANTED._replace(position=9)), True),
        ((), False),
        ((GRANTED._replace(name="b"),), False),
        ((GRANTED._replace(kind="lock"),), False),
        ((GRANTED._replace(what="proclaimed"),), False),
        ((GRANTED._replace(wall_ms=5001),), False),
    ],
    ids=["granted", "later", "nothing", "other name", "other kind", "other event", "other step"],
)
def test_a_step_hands_over_only_the_same_resource(
    following: tuple[Event, ...], expected: bool
) -> None:
    core: Any = SimpleNamespace(placement=None)
    watcher = Watcher(core, "election", "a", None, exact=True)
    watcher._ready.extend(following)
    assert watcher.hands_over(watch_event(RELEASED), "granted") is expected
