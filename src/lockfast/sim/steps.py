"""Derive the steps of one name from a history: what must have happened, and what may have."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Final

from lockfast.sim.checker import FAR, Conversion, Grant
from lockfast.sim.history import Entry
from lockfast.sim.smalllock import Claim, SmallLock, Step

FORMER_MAX: Final = 5
"""If an operation entered more often than this, the verdict is unknown."""


def small_lock(grants: Sequence[Grant], at: tuple[str, str], limit: int | None = None) -> SmallLock:
    """Return the model of the lock of one name, with all its claims.

    With `limit`, it had at most this many permits and may have been closed for a while.
    """
    claims: dict[int, Claim] = {}
    keepers: dict[str, int] = {}
    keeper_of: dict[int, int] = {}
    for grant in grants:
        place = next(place for place in grant.places if place[:2] == at)
        if grant.retained:
            keeper = keepers.setdefault(grant.by, keeper_number(len(keepers)))
            keeper_of[grant.op] = keeper
            claims[keeper] = Claim(keeper, place.mode, place.weight, place.limit)
            continue
        claim = Claim(
            grant.op,
            place.mode,
            place.weight,
            place.limit if limit is None else limit,
            grant.head_start * 1000,
            len(grant.places) > 1 or limit is not None,
            entered=(grant.asked, _entered_by(grant)),
        )
        for again in range(FORMER_MAX):
            claims[former(grant.op, again)] = claim
        if grant.granted and grant.answered is not None:
            claim = replace(claim, token=grant.token, held_by=grant.answered, granted=True)
        claims[grant.op] = claim
    return SmallLock(claims, keeper_of)


def steps_at(
    entries: Sequence[Entry], grants: Sequence[Grant], *, delayed: bool = False
) -> list[Step]:
    """Return all steps of these claims, by the earliest time at which they can have happened.

    With `delayed`, a claim may have been granted later than it could have been.
    """
    released = _releases(entries)
    again = entered_again(entries)
    steps: list[Step] = []
    for grant in grants:
        if grant.retained:
            steps += _uses(grant, released.get(grant.op))
            continue
        for i in range(again.get(grant.op, 0)):
            # A claim of an ended session was queued too, and may even have held.
            steps.append(Step("enter", former(grant.op, i), grant.asked, FAR))
            steps.append(Step("leave", former(grant.op, i), grant.asked, FAR))
        steps += _comes(grant, delayed or len(grant.places) > 1)
        if grant.granted:
            for change in grant.conversions:
                steps += _changes(grant, change)
            steps.append(_goes(grant, released.get(grant.op)))
    return sorted(steps, key=lambda step: step.start)


def keeper_number(i: int) -> int:
    """Return the number of a retained claim, different from all operations and former claims."""
    return -(i * 100 + 50)


def former(op: int, again: int) -> int:
    """Return the number of an earlier claim of an operation; `again` is below 50."""
    return -(op * 100 + again)


def entered_again(entries: Iterable[Entry]) -> dict[int, int]:
    """Return how often each operation entered again."""
    counts: dict[int, int] = {}
    for entry in entries:
        if entry.get("got") in ("queued", "entered"):
            counts[entry["op"]] = counts.get(entry["op"], -1) + 1
    return counts


def _releases(entries: Sequence[Entry]) -> dict[int, tuple[int, int]]:
    """Return the time of request and reply of each release."""
    asked = {entry["op"]: entry for entry in entries if entry.get("ask") == "release"}
    found = {entry["of"]: (entry["at"], FAR) for entry in asked.values()}
    for entry in entries:
        if entry.get("got") == "done" and entry["op"] in asked:
            of = asked[entry["op"]]["of"]
            found[of] = (found[of][0], entry["at"])
    return found


def _entered_by(grant: Grant) -> int:
    answered = grant.answered if grant.granted and grant.answered is not None else FAR
    return min(grant.queued or FAR, answered)


def _comes(grant: Grant, delayed: bool) -> Iterator[Step]:
    answered = grant.answered if grant.answered is not None else FAR
    if grant.outcome == "busy":
        yield Step("busy", grant.op, grant.asked, answered)
    elif grant.granted:
        what = "enter" if grant.waits else "attempt"
        yield Step(what, grant.op, grant.asked, _entered_by(grant))
        if delayed and grant.waits:
            yield Step("hold", grant.op, grant.asked, answered)
    elif grant.outcome != "refused":
        # It may have been queued; if so, it expired or is still there.
        yield Step("enter", grant.op, grant.asked, grant.queued or FAR)
        if delayed:
            yield Step("hold", grant.op, grant.asked, FAR)
        yield Step("leave", grant.op, grant.asked, FAR)


def _goes(grant: Grant, released: tuple[int, int] | None) -> Step:
    if released is not None and released[1] < FAR:
        return Step("leave", grant.op, *released)
    # No release is known. The store ended it before it said so, otherwise not
    # before its holder stopped relying on it.
    return Step("leave", grant.op, grant.asked if grant.why == "lost" else grant.over, FAR)


def _changes(grant: Grant, change: Conversion) -> Iterator[Step]:
    if change.granted and change.answered is not None:
        token = change.token if change.mode == "exclusive" else 0
        yield Step(
            "convert", grant.op, change.asked, change.answered, change.mode, token, change.answered
        )
    elif change.outcome == "timeout" and not change.waits and change.answered is not None:
        yield Step("convert_busy", grant.op, change.asked, change.answered)
    else:
        # It may have been granted nevertheless; then it ends some time later.
        yield Step("convert", grant.op, change.asked, FAR, change.mode)
        for mode in {grant.places[0].mode, *(other.mode for other in grant.conversions)}:
            yield Step("convert", grant.op, change.answered or change.asked, FAR, mode)


def _uses(grant: Grant, released: tuple[int, int] | None) -> Iterator[Step]:
    """Return the steps of a local user, for which the client may acquire and release the lock."""
    answered = grant.answered if grant.answered is not None else FAR
    yield Step("keep", grant.op, grant.asked, FAR)
    if not grant.granted:
        yield Step("give_up", grant.op, grant.asked, FAR)
        return
    yield Step("use", grant.op, grant.asked, answered, token=grant.token)
    since = grant.asked if grant.why == "lost" else grant.over
    done = released[1] if released is not None else FAR
    yield Step("unuse", grant.op, since, done if done > since else FAR)
    yield Step("give_up", grant.op, since, FAR)
