"""Many faults over a long time: what a process and a store use must not grow.

Two workers survive the whole run: faults hit them, but none kills or stops them.
Their memory, descriptors and threads, and the rows of the store, are measured at intervals, between
faults: a request to a stopped server would make the fault longer. The first quarter of the run
warms up. A figure is flat if its median over the last quarter is no more than that over the second
quarter plus an allowance, for each of the two processes:

  memory       10 % and 4 MB
  descriptors  3 (connections that are being replaced)
  threads      2
  rows         50 % and 50 (current claims and marks)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from time import monotonic
from typing import Final

from chaos.case import Case, Plan, Result
from chaos.faults import MIX
from chaos.targets import Target
from lockfast.sim.history import Entry

STRIKES_MIN: Final = 100
PAIRS_MIN: Final = 100_000
SAMPLES: Final = 80
SURVIVORS: Final = 2
PAGE_BYTES: Final = 4096


@dataclass(frozen=True)
class Sample:
    """Measurements of the survivors together, and of the store."""

    after_s: float
    memory_kb: int
    descriptors: int
    threads: int
    rows: int | None


class Figure:
    """One figure over the run, and the rule for whether it is flat."""

    def __init__(self, name: str, values: Sequence[int], share: float, extra: int) -> None:
        quarter = max(1, len(values) // 4)
        self.name = name
        self.enough = len(values) >= 8
        self.before = median(values[quarter : 2 * quarter] or [0])
        self.after = median(values[-quarter:] or [0])
        self.bound = self.before * (1 + share) + extra

    @property
    def is_flat(self) -> bool:
        return self.after <= self.bound

    def __str__(self) -> str:
        said = "flat" if self.is_flat else "GROWS"
        return (
            f"{self.name:<12}{self.before:>10.0f} → {self.after:<10.0f} at most {self.bound:<10.0f}"
            f" {said}"
        )


def figures_of(samples: Sequence[Sample]) -> list[Figure]:
    """Return the figures of the two survivors, and rows where the store can count them."""
    found = [
        Figure("memory kB", [s.memory_kb for s in samples], 0.10, 2 * 4096),
        Figure("descriptors", [s.descriptors for s in samples], 0.0, SURVIVORS * 3),
        Figure("threads", [s.threads for s in samples], 0.0, SURVIVORS * 2),
    ]
    rows = [s.rows for s in samples if s.rows is not None]
    if rows:
        found.append(Figure("rows", rows, 0.5, 50))
    return found


class Soak(Case):
    """A mix of faults, with survivors that are measured."""

    def __init__(
        self, target: Target, seconds: float, seed: int, directory: Path, say: Callable[[str], None]
    ) -> None:
        strikes = max(1, round(STRIKES_MIN * 1.3 * seconds / 1800))
        plan = Plan(seconds=seconds, seed=seed, gap_s=seconds / strikes, hold_ms=1.0, pause_ms=1.0)
        super().__init__(target, MIX, plan, directory)
        self.samples: list[Sample] = []
        self._every_s = max(0.5, seconds / SAMPLES)
        self._began = monotonic()
        self._next = self._began + self._every_s
        self._say = say

    def mortal(self) -> Sequence[int]:
        return range(SURVIVORS, len(self.workers))

    def tick(self) -> None:
        if monotonic() < self._next or len(self.workers) <= SURVIVORS:
            return
        self._next = monotonic() + self._every_s
        with suppress(OSError):
            self.samples.append(self._measure())
            if len(self.samples) % 8 == 0:
                last = self.samples[-1]
                self._say(
                    f"{last.after_s:6.0f} s: {self.result.strikes} faults, "
                    f"{self.witness.grants} grants, {last.memory_kb} kB, {last.descriptors} "
                    f"descriptors, {last.threads} threads, {last.rows} rows"
                )

    def _measure(self) -> Sample:
        processes = [Path(f"/proc/{w.process.pid}") for w in self.workers[:SURVIVORS]]
        memory = [int((p / "statm").read_text().split()[1]) * PAGE_BYTES for p in processes]
        rows = None
        with suppress(Exception):  # a cluster may still be electing a leader
            rows = self.target.rows()
        return Sample(
            monotonic() - self._began,
            sum(memory) // 1024,
            sum(sum(1 for _ in (p / "fd").iterdir()) for p in processes),
            sum(sum(1 for _ in (p / "task").iterdir()) for p in processes),
            rows,
        )


def soak(
    target: Target, seconds: float, seed: int, directory: Path, say: Callable[[str], None]
) -> Result:
    """Run a soak and print its measurements. Figures that grow become problems of the result."""
    case = Soak(target, seconds, seed, directory, say)
    result = case.run()
    for line in _summary(result, case.samples, pairs_of(result.entries), seconds):
        say(line)
    result.problems += [
        f"flat: {figure}" for figure in figures_of(case.samples) if not figure.is_flat
    ]
    return result


def pairs_of(entries: Iterable[Entry]) -> int:
    """Return how many leases were released, also by workers that were killed later."""
    releases: set[int] = set()
    pairs = 0
    for entry in entries:
        if entry.get("ask") == "release":
            releases.add(entry["op"])
        elif entry.get("got") == "done" and entry["op"] in releases:
            pairs += 1
    return pairs


def _summary(
    result: Result, samples: Sequence[Sample], pairs: int, seconds: float
) -> Iterator[str]:
    yield f"{seconds / 60:.1f} minutes, {result.strikes} faults, {pairs} acquires and releases"
    if seconds >= 1800:
        enough = result.strikes >= STRIKES_MIN and pairs >= PAIRS_MIN
        verdict = "reached" if enough else "MISSED"
        yield f"goal of {STRIKES_MIN} faults and {PAIRS_MIN} acquires and releases: {verdict}"
    yield f"{len(samples)} samples; medians over the second quarter → over the last quarter"
    for figure in figures_of(samples):
        yield str(figure)
