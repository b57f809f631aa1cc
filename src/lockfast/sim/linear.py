"""Check a history for linearizability: search for an order of steps that explains it, per name.

Every operation took effect at some time between its request and its reply. The search (after Wing
and Gong, with Lowe's memoization) tries the orders that real time allows and keeps those in which
a small model of a lock would have replied as recorded. Operations without a reply, and leases that
may have expired, are steps that may or may not have happened.

For a name that was closed for a while, or resized, the rules are weaker: no claim is granted
against the modes or the order, but a claim that could be granted may still wait.

The verdict may be "unknown": if the search exceeds its limit, or if the name has a history that
the model does not cover (a revoked retained claim, a conversion at a name that was closed).
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import Final

from lockfast.sim.checker import FAR, Grant, Problem, grants_of
from lockfast.sim.history import Entry
from lockfast.sim.smalllock import SmallLock, State, Step
from lockfast.sim.steps import FORMER_MAX, entered_again, small_lock, steps_at

STEPS_MAX: Final = 200_000


class Verdict(StrEnum):
    """The outcome of the search."""

    EXPLAINED = "explained"
    """Some order of steps explains the history."""
    IMPOSSIBLE = "impossible"
    UNKNOWN = "unknown"


def check_name(
    entries: Sequence[Entry], at: tuple[str, str], steps_max: int = STEPS_MAX
) -> Verdict:
    """Return whether some order of steps explains the history of one name."""
    all_grants = grants_of(entries)
    grants = [grant for grant in all_grants if any(place[:2] == at for place in grant.places)]
    limits = _limits(entries, grants, at)
    if not _is_known(entries, all_grants, grants) or limits is None:
        return Verdict.UNKNOWN
    lock = small_lock(grants, at, max(limits, default=None))
    return _search(lock, steps_at(entries, grants, delayed=bool(limits)), steps_max)


def explain(entries: Sequence[Entry]) -> dict[tuple[str, str], Verdict]:
    """Return the verdict for every name of a history."""
    names = dict.fromkeys(place[:2] for grant in grants_of(entries) for place in grant.places)
    return {at: check_name(entries, at) for at in names}


def unexplained(at: tuple[str, str]) -> Problem:
    return Problem("explanation", f"no order of steps explains what happened at {at[1]!r}")


def _limits(
    entries: Sequence[Entry], grants: Sequence[Grant], at: tuple[str, str]
) -> list[int] | None:
    """Return all limits of a name that was closed or resized; empty for any other name.

    Return None if the model does not cover what else happened there.
    """
    resized = [entry for entry in entries if entry.get("resize") == at[1]]
    closed = any(grant.closes for grant in grants) or any(
        entry.get("closed") == at[1] for entry in entries
    )
    if not resized and not closed:
        return []
    if any(grant.retained or grant.conversions for grant in grants) or any(
        "limit" not in entry for entry in resized
    ):
        return None
    asked = [place.limit for grant in grants for place in grant.places if place[:2] == at]
    return [*asked, *(entry["limit"] for entry in resized)]


def _is_known(
    entries: Sequence[Entry], all_grants: Sequence[Grant], grants: Sequence[Grant]
) -> bool:
    """Return True if the model covers everything that happened at this name."""
    if any(grant.retained and grant.revoked < FAR for grant in grants):
        return False
    again = entered_again(entries)
    if any(again.get(grant.op, 0) > FORMER_MAX for grant in grants):
        return False
    # The deadlock detector may let an actor that holds another lock pass a reservation.
    return not any(len(grant.places) > 1 for grant in grants) or not _nested(all_grants)


def _nested(grants: Sequence[Grant]) -> bool:
    """Return True if an actor requested a lock while it held another."""
    until: dict[str, int] = {}
    for grant in sorted(grants, key=lambda grant: grant.asked):
        if grant.asked < until.get(grant.by, 0):
            return True
        if grant.granted:
            until[grant.by] = max(until.get(grant.by, 0), grant.over)
    return False


def _search(lock: SmallLock, steps: list[Step], steps_max: int) -> Verdict:
    """Depth-first search over the orders that real time allows."""
    todo: list[tuple[State, int, int]] = [(State(), 0, 0)]
    seen: set[tuple[State, int]] = set()
    tried = 0
    while todo:
        state, done, low = todo.pop()
        while done >> low & 1:
            low += 1
        pending, by = _pending(steps, done, low, lock.bound(state))
        if by == FAR:
            return Verdict.EXPLAINED
        follow: list[tuple[State, int, int]] = []
        for i in pending:
            tried += 1
            if tried > steps_max:
                return Verdict.UNKNOWN
            with_it = done | 1 << i
            for after in lock.after(state, steps[i]):
                if (after, with_it) not in seen:
                    seen.add((after, with_it))
                    follow.append((after, with_it, low))
        todo += reversed(follow)
    return Verdict.IMPOSSIBLE


def _pending(steps: list[Step], done: int, low: int, by: int) -> tuple[list[int], int]:
    """Return the steps that may be next, the likelier first, and the time by which one must happen.

    A step that must happen by some time bounds what may come before it.
    """
    musts: list[tuple[int, int]] = []
    mays: list[int] = []
    for i in range(low, len(steps)):
        step = steps[i]
        if step.start > by:
            break
        if done >> i & 1:
            continue
        if step.end < FAR:
            by = min(by, step.end)
            musts.append((step.end, i))
        else:
            mays.append(i)
    musts.sort()
    found = [i for _, i in musts] + mays
    return [i for i in found if steps[i].start <= by], by
