"""Run many worlds: seeds over all workloads and faults, on all cores.

A seed determines one schedule. In between, the lock table is compared with its model on random
commands, which reach states that clients rarely reach.
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
"""How many schedules a process runs at a time, if there are enough for all cores."""
COLLECT_EVERY: Final = 50
"""The garbage collector runs once per this many schedules."""
TABLE_EVERY: Final = 65
"""How many schedules run between two comparisons of the table with its model. The six profiles
take turns, so this is not a multiple of two or three."""
TABLE_STEPS: Final = 120
ENTRY_TTLS: Final = 3
"""After the faults have ended, a lock with waiters is granted within this many TTLs."""
DEADLOCK_TTLS: Final = 3
"""This many TTLs more if clients deadlock, because the deadlock must be detected first."""
EXPEL_TTLS: Final = 1.5
"""This many TTLs more for each session that a waiter must expel."""

_ALL: Final = 1 << 30

_CIRCULAR: Final = frozenset(("nested", "crossed_upgrades"))
"""Workloads whose clients deadlock."""
_LONG_TTLS: Final = frozenset(("nested", "ttls"))
"""Workloads with TTLs up to twice that of the world."""
_PROMISE: Final = re.compile(r"PromiseBrokenError\(['\"]([^:]+):")


class Failure(NamedTuple):
    """One schedule that broke a promise."""

    seed: int
    what: str
    problems: tuple[Problem, ...]
    replay: str
    mixed: bool = True
    """True for a run of a world, False for a comparison of the table with its model."""
    store: str = "memory"

    def __str__(self) -> str:
        shown = "\n    ".join(map(str, self.problems[:3]))
        return f"seed {self.seed} ({self.what}):\n    {shown}\n  replay: {self.replay}"


def judge(run: Run) -> list[Problem]:
    """Return all problems of a run."""
    return run.problems + check_history(
        run.entries,
        forgets=run.mix.forgets,
        fenced=run.mix.fenced,
        alive_us=alive_us(run.mix),
        per_name=run.mix.store == "quorum",
    )


def alive_us(mix: Mix) -> int:
    """Return how long a lock with waiters may stay without a grant."""
    longest_ms = max(mix.knobs_of_workload(name)["hold_ms"][1] for name in mix.workloads)
    ttls: float = ENTRY_TTLS + (DEADLOCK_TTLS if _CIRCULAR & mix.workloads.keys() else 0)
    ttl_ms = mix.ttl_ms
    if mix.store == "etcd":
        # An etcd lease has whole seconds, is longer after an election, and is revoked late.
        ttl_ms += 2500
    if mix.store == "zookeeper":
        # ZooKeeper's timeout is a third longer than the TTL.
        ttl_ms += ttl_ms // 3 + 1
    if _LONG_TTLS & mix.workloads.keys():
        ttl_ms += mix.ttl_ms
    if mix.moves_deadlines and "crash" in mix.faults:
        # The store keeps dead sessions. A waiter sees only the one ahead of it, so it expels them
        # one after the other.
        ttls += EXPEL_TTLS * mix.clients * mix.knobs_of_fault("crash")["times"]
    return int((ttls * ttl_ms + longest_ms + 50) * MS)


def try_seed(seed: int, mix: Mix | None = None) -> tuple[Run, list[Problem]]:
    """Run one schedule and check it."""
    world = World(mix if mix is not None else mix_of_seed(seed), seed)
    run = world.run()
    world.disband()
    return run, judge(run)


def compare_table(seed: int) -> Failure | None:
    """Compare the table that ships with the model on random commands."""
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
    """The progress of a search."""

    schedules: int = 0
    operations: int = 0
    least: int = 1 << 30
    """The smallest number of operations of a schedule."""
    commands: int = 0
    """The number of commands compared between table and model."""
    cpu_s: float = 0.0
    """The CPU time of the processes, for everything they did."""
    comparing_s: float = 0.0
    """The part of it that the comparisons took."""
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
        """Return schedules per minute and core, without and with the comparisons."""
        alone_s = self.cpu_s - self.comparing_s
        alone, together = (60 * self.schedules / max(s, 1e-9) for s in (alone_s, self.cpu_s))
        return f"{alone:,.0f} schedules per minute and core ({together:,.0f} with the comparisons)"

    def line(self) -> str:
        return (
            f"{self.schedules:,} schedules, {self.operations:,} operations "
            f"(at least {self.least if self.schedules else 0} each), {self.commands:,} commands "
            f"compared, {self.rates()}, {len(self.findings)} failures"
        )


def run_chunk(seeds: Iterable[int], store: str = "memory", failures_max: int = _ALL) -> Tally:
    """Run seeds one after another, with logging disabled. Stops early after some failures."""
    began = time.process_time()
    said_before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    # A world is full of reference cycles, and all of it is garbage afterwards. Objects from
    # before need not be traversed each time.
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        tally = _run_seeds(seeds, store, failures_max)
    finally:
        gc.enable()
        gc.unfreeze()
        logging.disable(said_before)
    tally.cpu_s = time.process_time() - began
    return tally


def _run_seeds(seeds: Iterable[int], store: str, failures_max: int) -> Tally:
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
        if len(tally.findings) >= failures_max:
            break
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
    """Run `count` seeds from `first` on. Stops early after a few failures."""
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
    """Print the progress: in place on a terminal, otherwise on a new line now and then."""
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
    """Yield the failures of the default search for these seeds, in this process."""
    iterator = iter(seeds)
    while (tally := run_chunk(islice(iterator, CHUNK // 10), store, failures_max=1)).schedules:
        yield from tally.findings


def first_failure(seeds: Iterable[int], store: str = "memory") -> Failure | None:
    """Return the first failure, if there is one."""
    return next(failures(seeds, store), None)
