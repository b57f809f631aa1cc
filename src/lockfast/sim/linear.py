"""A search for an order of steps that explains a history: the whole table, one name at a time.

Every operation took effect at one instant between its question and its answer. The search (after
Wing and Gong, and Lowe's memo) tries the orders that true time allows and keeps those in which a
small lock, stated here once more in twenty lines, would have answered as was recorded. Operations
without an answer, and leases that may have ended by themselves, are steps that may be left out.

The verdict may be "unknown": when the search is larger than it is allowed to be.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, NamedTuple, TypeAlias

from lockfast.core.commands import Place
from lockfast.sim.checker import FAR, Grant, Problem, grants_of
from lockfast.sim.history import Entry
from lockfast.sim.model import COMPATIBLE

STEPS_MAX: Final = 200_000
FORMER_MAX: Final = 5
"""An operation that entered more often than this leaves the verdict open."""


class Verdict(StrEnum):
    """What came of the search."""

    EXPLAINED = "explained"
    """There is an order that explains everything."""
    IMPOSSIBLE = "impossible"
    UNKNOWN = "unknown"


class Step(NamedTuple):
    """Something that takes effect at one instant, not before `start`; by `end` if it must."""

    what: str
    """`enter`, `try`, `busy`, `leave` or `end` (a lease or a claim that ended by itself)."""
    op: int
    start: int
    end: int
    """FAR: it may never have happened."""
    held_by: int = FAR
    """Of `enter`: when the answer said that it holds."""


@dataclass(frozen=True)
class _Claim:
    op: int
    mode: str
    weight: int
    limit: int
    head_start_us: int


State: TypeAlias = tuple[tuple[int, ...], tuple[int, ...]]
"""Who holds, and who waits, in order."""


class _Lock:
    """The rules of one name."""

    def __init__(self, grants: Iterable[Grant], at: tuple[str, str]) -> None:
        self.claims: dict[int, _Claim] = {}
        self.tokens: dict[int, int] = {}
        for grant in grants:
            place = next(place for place in grant.places if place[:2] == at)
            self.claims[grant.op] = _claim(grant, place)
            for again in range(FORMER_MAX):
                self.claims[former(grant.op, again)] = self.claims[grant.op]
            if grant.granted:
                self.tokens[grant.op] = grant.token

    def step(self, state: State, step: Step) -> State | None:
        """The state after a step; None if it cannot have gone like this."""
        holders, waiting = state
        if step.what in ("leave", "end"):
            if step.op in holders:
                return self._settle(tuple(op for op in holders if op != step.op), waiting)
            if step.op in waiting:
                return self._settle(holders, tuple(op for op in waiting if op != step.op))
            return state if step.what == "leave" else None
        free = not waiting and self._fits(step.op, holders)
        if step.what == "busy":
            return None if free else state
        if step.what == "try":
            return (*holders, step.op), waiting
        return self._settle(holders, (*waiting, step.op))

    def _settle(self, holders: tuple[int, ...], waiting: tuple[int, ...]) -> State:
        while waiting and self._fits(waiting[0], holders):
            holders, waiting = (*holders, waiting[0]), waiting[1:]
        return tuple(sorted(holders)), waiting

    def _fits(self, op: int, holders: tuple[int, ...]) -> bool:
        claim = self.claims[op]
        if claim.mode == "permit":
            taken = sum(self.claims[other].weight for other in holders)
            return taken + claim.weight <= claim.limit
        return all((claim.mode, self.claims[other].mode) in COMPATIBLE for other in holders)


def _claim(grant: Grant, place: Place) -> _Claim:
    return _Claim(grant.op, place.mode, place.weight, place.limit, grant.head_start * 1000)


def check_name(
    entries: Sequence[Entry], at: tuple[str, str], steps_max: int = STEPS_MAX
) -> Verdict:
    """Whether the history of one name can be explained; single claims without head starts."""
    grants = [
        grant for grant in grants_of(entries) if any(place[:2] == at for place in grant.places)
    ]
    if any(len(grant.places) > 1 or grant.head_start or grant.kept for grant in grants):
        return Verdict.UNKNOWN
    again = _entered_again(entries)
    if any(again.get(grant.op, 0) > FORMER_MAX for grant in grants):
        return Verdict.UNKNOWN
    steps = _steps(entries, grants)
    return _search(_Lock(grants, at), steps, steps_max)


def explain(entries: Sequence[Entry]) -> list[Problem]:
    """Every name of a history; those that leave the verdict open are passed over."""
    names = dict.fromkeys(place[:2] for grant in grants_of(entries) for place in grant.places)
    return [
        Problem("explanation", f"no order of steps explains what happened at {at[1]!r}")
        for at in names
        if check_name(entries, at) is Verdict.IMPOSSIBLE
    ]


def _steps(entries: Sequence[Entry], grants: Sequence[Grant]) -> list[Step]:
    releases: dict[int, tuple[int, int]] = {}
    asked = {e["op"]: e for e in entries if e.get("ask") == "release"}
    for entry in asked.values():
        releases[entry["of"]] = (entry["at"], FAR)
    for entry in entries:
        if entry.get("got") == "done" and entry["op"] in asked:
            of = asked[entry["op"]]["of"]
            releases[of] = (releases[of][0], entry["at"])
    steps: list[Step] = []
    entered_again = _entered_again(entries)
    for grant in grants:
        for again in range(entered_again.get(grant.op, 0)):
            # A claim of a session that is over stood there too, and may even have held.
            steps.append(Step("enter", former(grant.op, again), grant.asked, FAR))
            steps.append(Step("end", former(grant.op, again), grant.asked, FAR))
        answered = grant.answered if grant.answered is not None else FAR
        if grant.outcome == "busy":
            steps.append(Step("busy", grant.op, grant.asked, answered))
            continue
        if grant.granted:
            entered = min(grant.queued or FAR, answered)
            what = "enter" if grant.waits else "try"
            steps.append(Step(what, grant.op, grant.asked, entered, answered))
        elif grant.outcome != "refused":
            # It may have stood in line, and has left it by itself or not at all.
            steps.append(Step("enter", grant.op, grant.asked, grant.queued or FAR))
            steps.append(Step("end", grant.op, grant.asked, FAR))
            continue
        released = releases.get(grant.op)
        if released is not None and released[1] < FAR:
            steps.append(Step("leave", grant.op, *released))
        elif grant.granted:
            # Never given back as far as is known. The store ended it before it told so, else
            # not before its holder took it for over.
            start = grant.asked if grant.why == "lost" else grant.over
            steps.append(Step("end", grant.op, start, FAR))
    return sorted(steps, key=lambda step: step.start)


def former(op: int, again: int) -> int:
    """The number of an operation's former claim."""
    return -(op * 100 + again)


def _entered_again(entries: Iterable[Entry]) -> dict[int, int]:
    """Of each operation, how often it entered once more."""
    counts: dict[int, int] = {}
    for entry in entries:
        if entry.get("got") in ("queued", "entered"):
            counts[entry["op"]] = counts.get(entry["op"], -1) + 1
    return counts


def _search(lock: _Lock, steps: list[Step], steps_max: int) -> Verdict:
    """Depth first over the orders that true time allows."""
    must_hold = sorted((step.held_by, step.op) for step in steps if step.held_by < FAR)
    first: tuple[State, frozenset[int], int] = (((), ()), frozenset(), 0)
    todo = [first]
    seen: set[tuple[State, frozenset[int]]] = set()
    tried = 0
    while todo:
        state, done, low = todo.pop()
        while low < len(steps) and low in done:
            low += 1
        pending = [i for i in range(low, len(steps)) if i not in done]
        # Whatever must have happened by then bounds what may come next.
        by = min((steps[i].end for i in pending), default=FAR)
        held_late = _first_not_held(lock, must_hold, state, done, steps)
        by = min(by, held_late)
        if by == FAR:
            return Verdict.EXPLAINED
        for i in reversed(pending):
            step = steps[i]
            if step.start > by:
                continue
            tried += 1
            if tried > steps_max:
                return Verdict.UNKNOWN
            after = lock.step(state, step)
            if after is None or not _in_order(lock, state, after):
                continue
            key = (after, done | {i})
            if key not in seen:
                seen.add(key)
                todo.append((after, key[1], low))
    return Verdict.IMPOSSIBLE


def _first_not_held(
    lock: _Lock,
    must_hold: Sequence[tuple[int, int]],
    state: State,
    done: frozenset[int],
    steps: Sequence[Step],
) -> int:
    """The first instant by which somebody was told to hold who does not, in this order."""
    over = {steps[i].op for i in done if steps[i].what in ("leave", "end")}
    for held_by, op in must_hold:
        if op not in state[0] and op not in over:
            return held_by
    return FAR


def _in_order(lock: _Lock, before: State, after: State) -> bool:
    """Those who hold now have tokens above those who held before them."""
    fresh = [lock.tokens[op] for op in after[0] if op not in before[0] and op in lock.tokens]
    former = [lock.tokens[op] for op in before[0] if op in lock.tokens]
    return not fresh or not former or min(fresh) > max(former)
