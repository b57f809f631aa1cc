"""`python -m lockfast.sim speed`: measure the checkers and the search, without judging."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from functools import partial
from operator import itemgetter
from typing import Final

from lockfast.sim.checker import Lease, check_leases
from lockfast.sim.linear import check_name
from lockfast.sim.mix import STORES, Mix
from lockfast.sim.search import run_chunk
from lockfast.sim.world import World

LEASES: Final = 500_000
OPERATIONS: Final = 400
SCHEDULES: Final = 500
CONTENDED: Final = ("turns", "readers", "priorities", "impatient")
"""Workloads in which five clients contend for one lock all the time."""


def leases(count: int) -> list[Lease]:
    """Return a valid history of one exclusive lock."""
    rng = random.Random(5)
    found: list[Lease] = []
    at = 0
    for token in range(1, count + 1):
        asked = at - rng.randrange(50)
        at += rng.randrange(1, 9)
        found.append((token * 3, asked, at, at + 5))
        at += 5
    return found


def lines() -> Iterator[str]:
    """Print each figure on a line, by the CPU time of this process."""
    # In the order of a history: by the time of the request.
    many = sorted(leases(LEASES), key=itemgetter(1))
    seconds = _seconds(lambda: check_leases(many))
    yield f"leases of one lock: {LEASES / seconds:,.0f} grants a second"
    for workload in CONTENDED:
        mix = Mix({workload: {"names": 1, "think_ms": (0, 5)}}, clients=5, operations=OPERATIONS)
        run = World(mix, 3).run()
        seconds = _seconds(partial(check_name, run.entries, ("lock", "a")))
        yield f"explanation, {workload}: {run.operations / seconds:,.0f} operations a second"
    for store in STORES:
        yield f"search, {store}: {run_chunk(range(SCHEDULES), store).rates()}"


def _seconds(work: Callable[[], object]) -> float:
    began = time.process_time()
    work()
    return max(time.process_time() - began, 1e-9)
