"""Deadlocks between processes."""

from __future__ import annotations

import pytest

from tests.processes.crew import Child, Crew
from tests.processes_primitives import roles

DEADLOCK_AFTER_S = 1.0
ROUNDS = 3_000
"""Of all processes together."""


@pytest.mark.parametrize(
    "pairs",
    [
        [("lock:a", "lock:b"), ("lock:b", "lock:a")],
        [("lock:l", "write:rw"), ("read:rw", "semaphore:s"), ("semaphore:s", "lock:l")],
    ],
    ids=["two", "three"],
)
def test_exactly_one_of_a_cycle_is_told(crew: Crew, pairs: list[tuple[str, str]]) -> None:
    children = [crew.start(roles.hold_then, *pair, DEADLOCK_AFTER_S) for pair in pairs]
    for child in children:
        child.hears("holds")
    for child in children:
        child.tell("go on")
    outcomes = [child.hears_anything().split() for child in children]
    victims = [words for words in outcomes if words[0] == "victim"]
    assert len(victims) == 1, outcomes
    assert [words[0] for words in outcomes].count("done") == len(pairs) - 1
    assert float(victims[0][1]) >= DEADLOCK_AFTER_S * 0.9, "nobody looks before"
    assert int(victims[0][2]) == len(pairs), "the error names each lock of the cycle"


def test_several_at_once_never_deadlock(crew: Crew) -> None:
    """Eight processes, both orders of the names, all priorities."""
    each = ROUNDS // 8
    children: list[Child] = [
        crew.start(roles.cross, ["a", "b"] if at % 2 else ["b", "a"], each, at % 3)
        for at in range(8)
    ]
    for child in children:
        child.hears("ready")
    for child in children:
        child.tell("go on")
    for child in children:
        rounds, failed = child.hears("done", within=100)
        assert (int(rounds), int(failed)) == (each, 0)
    look = crew.client()
    for name in "ab":
        info = look.inspect(name)
        assert (info.holder_count, info.waiting_count) == (0, 0)
