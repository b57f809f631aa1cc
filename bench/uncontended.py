"""The cost of an uncontended lock: acquire and release in one process."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from bench.contestants import Contestant
from bench.figures import Summary, summary
from bench.rounds import in_turn

__all__ = ["Uncontended", "conclude", "measure_uncontended"]


@dataclass(frozen=True)
class Uncontended:
    pair_us: Summary
    """The median of the rounds' medians; p99 over all pairs."""
    round_medians_us: tuple[float, ...]

    def times(self, other: Uncontended) -> float:
        """Return how many times as long as `other`, round by round, so that drift cancels out."""
        pairs = zip(self.round_medians_us, other.round_medians_us, strict=True)
        return median(ours / theirs for ours, theirs in pairs)


def measure_uncontended(
    contestants: Sequence[Contestant], *, rounds: int, pairs_per_round: int
) -> dict[str, Uncontended]:
    for contestant in contestants:
        _time_pairs(contestant, pairs_per_round)  # warm-up: caches, pages, first-time set-up
    samples: dict[str, list[list[float]]] = {contestant.name: [] for contestant in contestants}
    for contestant in in_turn(contestants, rounds):
        samples[contestant.name].append(_time_pairs(contestant, pairs_per_round))
    return {name: conclude(of_rounds) for name, of_rounds in samples.items()}


def _time_pairs(contestant: Contestant, pairs: int) -> list[float]:
    took_us = []
    for _ in range(pairs):
        started_ns = time.perf_counter_ns()
        contestant.acquire()
        contestant.release()
        took_us.append((time.perf_counter_ns() - started_ns) / 1e3)
    return took_us


def conclude(of_rounds: list[list[float]]) -> Uncontended:
    medians = tuple(median(took_us) for took_us in of_rounds)
    overall = summary([value for took_us in of_rounds for value in took_us])
    return Uncontended(Summary(median(medians), overall.p99, overall.count), medians)
