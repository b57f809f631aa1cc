"""Processes that all contend for the lock all the time: how many grants, and to which?"""

from __future__ import annotations

import time
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from statistics import median

from bench.crew import Crew, Hold, of_each, take_turns
from bench.figures import jain_index

__all__ = ["Contention", "measure_contention"]

# Long enough for an order to reach every process before any of them starts.
START_IN_NS = 50_000_000


@dataclass(frozen=True)
class Contention:
    """One round, or the typical round of several."""

    processes: int
    grants_per_s: float
    handovers_per_s: float
    """Grants to a process other than the previous holder; few if one process hogs the lock."""
    fairness: float
    """Jain's index of the grants that each had when the first had received all of its own."""
    most_passed: int
    """The most grants to others between a request and its grant. The request is timestamped before
    it reaches the lock, so a process preempted in between adds to it; with a queue it is about
    `processes` − 1."""
    overlaps: int
    """Grants made while the previous holder still held: anything but 0 is a broken lock."""


def measure_contention(
    crews: Sequence[Crew], *, rounds: int, processes: int, grants_per_process: int
) -> dict[str, Contention]:
    results = of_each(crews, rounds, lambda crew: _compete(crew, processes, grants_per_process))
    return {name: _typical(of_rounds) for name, of_rounds in results.items()}


def _compete(crew: Crew, processes: int, grants: int) -> Contention:
    start_ns = time.monotonic_ns() + START_IN_NS
    order = partial(take_turns, grants=grants, start_ns=start_ns)
    results = [member.start(order) for member in crew.members[:processes]]
    return _judge([result() for result in results])


def _judge(turns: list[list[Hold]]) -> Contention:
    grants = sorted(
        ((hold, member) for member, holds in enumerate(turns) for hold in holds),
        key=lambda grant: grant[0].granted_ns,
    )
    granted_ns = [hold.granted_ns for hold, _ in grants]
    first_through_ns = min(holds[-1].granted_ns for holds in turns)
    began_ns = min(hold.requested_ns for hold, _ in grants)
    elapsed_s = (grants[-1][0].releasing_ns - began_ns) / 1e9
    changes = sum(earlier[1] != later[1] for earlier, later in pairwise(grants))
    return Contention(
        processes=len(turns),
        grants_per_s=len(grants) / elapsed_s,
        handovers_per_s=changes / elapsed_s,
        fairness=jain_index(
            [sum(hold.granted_ns <= first_through_ns for hold in holds) for holds in turns]
        ),
        most_passed=max(
            position - bisect_right(granted_ns, hold.requested_ns)
            for position, (hold, _) in enumerate(grants)
        ),
        overlaps=sum(
            later[0].granted_ns < earlier[0].releasing_ns for earlier, later in pairwise(grants)
        ),
    )


def _typical(rounds: list[Contention]) -> Contention:
    """Return medians of what is typical, and the worst of what should never happen."""
    return Contention(
        processes=rounds[0].processes,
        grants_per_s=median(result.grants_per_s for result in rounds),
        handovers_per_s=median(result.handovers_per_s for result in rounds),
        fairness=median(result.fairness for result in rounds),
        most_passed=max(result.most_passed for result in rounds),
        overlaps=sum(result.overlaps for result in rounds),
    )
