"""Running many worlds: seeds over all workloads and faults, on all cores.

Every seed is one schedule, decided by that number alone. Besides, the lock table is compared
with the model of it, on random commands: that finds in the table what no client meets by chance.
"""

from __future__ import annotations

import gc
import logging
import multiprocessing
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import Final, NamedTuple, TextIO

from lockfast.core.memory_rows import MemoryRows
from lockfast.core.table import Table
from lockfast.sim.checker import Problem, check_history
from lockfast.sim.mix import Mix, mix_of_seed
from lockfast.sim.model import Model
from lockfast.sim.runtime import MS
from lockfast.sim.world import Run, World

CHUNK: Final = 100
"""As many schedules are run in one go, if there are enough for all cores."""
COLLECT_EVERY: Final = 50
"""As many schedules leave their garbage together."""
TABLE_EVERY: Final = 65
"""As many schedules go by between two comparisons of the table with its model. With six
profiles to go through in turn, not a multiple of two or three."""
TABLE_STEPS: Final = 120
ENTRY_TTLS: Final = 3
"""After a healing a lock is entered within this many TTLs,"""
DEADLOCK_TTLS: Final = 3
"""and as many later where clients wait for each other in a circle, to be found first."""

_CIRCULAR: Final = frozenset(("nested", "crossed_upgrades"))
"""Workloads whose clients wait for each other in a circle."""
_PROMISE: Final = re.compile(r"PromiseBrokenError\(['\"]([^:]+):")


class Failure(NamedTuple):
    """One schedule that broke a promise."""

    seed: int
    what: str
    problems: tuple[Problem, ...]
    replay: str
    mixed: bool = True
    """It is a run of a world, not a comparison of the table with its model."""
    store: str = "memory"

    def __str__(self) -> str:
        shown = "\n    ".join(map(str, self.problems[:3]))
        return f"seed {self.seed} ({self.what}):\n    {shown}\n  replay: {self.replay}"


def judge(run: Run) -> list[Problem]:
    """Everything that is wrong with a run."""
    return run.problems + check_history(
        run.entries,
        forgets=run.mix.forgets,
        fenced=run.mix.fenced,
        alive_us=alive_us(run.mix),
        per_name=run.mix.store == "quorum",
    )


def alive_us(mix: Mix) -> int:
    """How long at most nobody enters a lock that somebody waits for."""
    longest_ms = max(mix.knobs_of_workload(name)["hold_ms"][1] for name in mix.workloads)
    ttls = ENTRY_TTLS + (DEADLOCK_TTLS if _CIRCULAR & mix.workloads.keys() else 0)
    ttl_ms = mix.ttl_ms
    if mix.store == "etcd":
        # A lease lasts whole seconds, longer by an election, and is revoked half a second late.
        ttl_ms += 2500
    if "ttls" in mix.workloads:
        ttl_ms += mix.ttl_ms
    return int((ttls * ttl_ms + longest_ms + 50) * MS)


def try_seed(seed: int, mix: Mix | None = None) -> tuple[Run, list[Problem]]:
    """One schedule and its verdict."""
    world = World(mix if mix is not None else mix_of_seed(seed), seed)
    run = world.run()
    world.disband()
    return run, judge(run)


def compare_table(seed: int) -> Failure | None:
    """Some random commands on the table that ships and on the model."""
    from lockfast.conformance.commands import MismatchError, compare

    try:
        compare(lambda: Table(MemoryRows()), Model, seed, TABLE_STEPS)
    except MismatchError as error:
        replay = f"python -m lockfast.sim table --seed {seed}"
        broken = _PROMISE.search(str(error))
        problem = Problem(broken[1] if broken is not None else "model", str(error))
        return Failure(seed, "table and model", (problem,), replay, mixed=False)
    return None


@dataclass
class Tally:
    """How far a search has come."""

    schedules: int = 0
    operations: int = 0
    least: int = 1 << 30
    """The fewest operations of a schedule."""
    commands: int = 0
    """Of the comparisons between table and model."""
    cpu_s: float = 0.0
    """All the time that the processes had a core: running, judging, comparing, tidying up."""
    comparing_s: float = 0.0
    """What the comparisons took of it."""
    findings: list[Failure] = field(default_factory=list)

    def add(self, other: Tally) -> None:
        self.schedules += other.schedules
        self.operations += other.operations
        self.least = min(self.least, other.least)
        self.commands += other.commands
        self.cpu_s += other.cpu_s
        self.comparing_s += other.comparing_s
        self.findings += other.findings

    def rates(self) -> str:
        """Schedules per minute and core, apart from comparing the table and together with it."""
        alone_s = self.cpu_s - self.comparing_s
        alone, together = (60 * self.schedules / max(s, 1e-9) for s in (alone_s, self.cpu_s))
        return f"{alone:,.0f} schedules per minute and core ({together:,.0f} with the comparisons)"

    def line(self) -> str:
        return (
            f"{self.schedules:,} schedules, {self.operations:,} operations "
            f"(at least {self.least if self.schedules else 0} each), {self.commands:,} commands "
            f"compared, {self.rates()}, {len(self.findings)} failures"
        )


def run_chunk(seeds: Iterable[int], store: str = "memory") -> Tally:
    """Run some seeds one after another, with logging switched off."""
    began = time.process_time()
    said_before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    # A world is full of circles, and garbage as a whole when it is done. What was there
    # before it need not be looked through each time.
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        tally = _run_seeds(seeds, store)
    finally:
        gc.enable()
        gc.unfreeze()
        logging.disable(said_before)
    tally.cpu_s = time.process_time() - began
    return tally


def _run_seeds(seeds: Iterable[int], store: str) -> Tally:
    tally = Tally()
    for seed in seeds:
        run, problems = try_seed(seed, mix_of_seed(seed, store))
        tally.schedules += 1
        tally.operations += run.operations
        tally.least = min(tally.least, run.operations)
        if problems:
            replay = f"python -m lockfast.sim replay --store {store} --seed {seed}"
            found = Failure(seed, str(run.mix), tuple(problems), replay, store=store)
            tally.findings.append(found)
        del run
        if tally.schedules % COLLECT_EVERY == 0:
            gc.collect()
        if store == "memory" and seed % TABLE_EVERY == 0:
            began = time.process_time()
            finding = compare_table(seed)
            tally.comparing_s += time.process_time() - began
            tally.commands += TABLE_STEPS
            if finding is not None:
                tally.findings.append(finding)
    return tally


def _chunks(first: int, count: int, jobs: int) -> Iterator[range]:
    size = max(1, min(CHUNK, count // (4 * jobs)))
    for start in range(first, first + count, size):
        yield range(start, min(start + size, first + count))


def search(
    first: int,
    count: int,
    *,
    store: str = "memory",
    jobs: int | None = None,
    progress: Callable[[Tally], None] | None = None,
    failures_max: int = 3,
) -> Tally:
    """Run `count` seeds from `first` on; stops early after a few failures."""
    jobs = jobs or len(os.sched_getaffinity(0))
    total = Tally()
    chunks = _chunks(first, count, jobs)
    if jobs == 1:
        for chunk in chunks:
            total.add(run_chunk(chunk, store))
            if progress is not None:
                progress(total)
            if len(total.findings) >= failures_max:
                break
        return total
    context = multiprocessing.get_context("spawn")
    with context.Pool(jobs) as pool:
        for tally in pool.imap_unordered(partial(run_chunk, store=store), chunks):
            total.add(tally)
            if progress is not None:
                progress(total)
            if len(total.findings) >= failures_max:
                pool.terminate()
                break
    return total


def progress_line(out: TextIO, count: int) -> Callable[[Tally], None]:
    """Shows how far it is: in place on a terminal, else now and then on a line of its own."""
    last = [0.0]

    def show(tally: Tally) -> None:
        now = time.monotonic()
        if now - last[0] < (0.2 if out.isatty() else 10.0) and tally.schedules < count:
            return
        last[0] = now
        share = f"{100 * tally.schedules // max(1, count)} % "
        out.write(f"\r{share}{tally.line()}" if out.isatty() else f"{share}{tally.line()}\n")
        out.flush()

    return show


def failures(seeds: Iterable[int], store: str = "memory") -> Iterator[Failure]:
    """The failures of the default search among these seeds, one by one, in this process."""
    iterator = iter(seeds)
    while chunk := list(islice(iterator, CHUNK // 10)):
        yield from run_chunk(chunk, store).findings


def first_failure(seeds: Iterable[int], store: str = "memory") -> Failure | None:
    """The first of them, if there is one."""
    return next(failures(seeds, store), None)
