"""The detector failed when actors of another deadlock held all permits of a semaphore.

It found two groups and looked for a victim in each. In one of them no actor waited for permits of
the group itself, so there was no candidate, and the error ended the keeper: all leases of the
session were lost.
"""

from __future__ import annotations

from lockfast.core.commands import ClaimView, Place, ResourceView
from lockfast.core.deadlock import find_cycles


def claim(n: int, actor: str, place: Place, state: str) -> ClaimView:
    return ClaimView(
        "session", n, "owner", actor, (place,), state, n, 0, None, n, 1000, "", "", 1, ""
    )


def lock(n: int, name: str, holder: str, waiting: str) -> ResourceView:
    place = Place("lock", name, "exclusive")
    holders = (claim(n, holder, place, "holding"),)
    return ResourceView(
        "lock", name, holders, (claim(n + 1, waiting, place, "waiting"),), 1, 1, 0, 0
    )


def test_only_those_who_wait_for_each_other_are_a_deadlock() -> None:
    """a and b wait for each other.

    c holds a permit and wants a lock of d; d wants a permit, and would get one of a's if a could
    proceed.
    """
    permit = Place("semaphore", "s", "permit", 1, 2)
    semaphore = ResourceView(
        "semaphore",
        "s",
        (claim(1, "a", permit, "holding"), claim(2, "c", permit, "holding")),
        (claim(3, "d", permit, "waiting"),),
        2,
        1,
        2,
        0,
    )
    views = [semaphore, lock(10, "x", "a", "b"), lock(20, "y", "b", "a"), lock(30, "z", "d", "c")]
    (found,) = find_cycles(views)
    assert found.actors == {"a", "b"}


def test_a_long_line_is_gone_through_once() -> None:
    """Ten thousand claims that wait behind each other, named in reverse order."""
    place = Place("lock", "gate", "exclusive")
    count = 10_000
    line = tuple(claim(n, f"actor-{count - n:05}", place, "waiting") for n in range(1, count))
    holder = claim(count, "holder", place, "holding")
    assert find_cycles([ResourceView("lock", "gate", (holder,), line, 1, len(line), 0, 0)]) == []
