"""Percentiles of durations in constant memory.

A sketch counts values in buckets whose bounds grow by a constant factor (1.1), and answers with
the geometric middle of a bucket. So a percentile is off by at most a factor of √1.1: less than
5 % of the true value, for values from 10 µs to 28 hours. Shorter values count as 0, longer ones
as 28 hours. Sketches add up, which is what makes sliding windows cheap.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterable
from typing import Final

GROWTH: Final = 1.1
ERROR_MAX: Final = math.sqrt(GROWTH) - 1
"""The largest relative error of a percentile: 4.9 %."""
LOWEST_S: Final = 1e-5
HIGHEST_S: Final = 1e5
_LOG_GROWTH: Final = math.log(GROWTH)
BUCKETS: Final = math.ceil(math.log(HIGHEST_S / LOWEST_S) / _LOG_GROWTH) + 1
"""Bucket 0 holds the values below LOWEST_S."""


class Sketch:
    """Counts of values per bucket."""

    __slots__ = ("_counts", "count")

    def __init__(self) -> None:
        self.count = 0
        self._counts: array[int] | None = None

    def add(self, value_s: float) -> None:
        if self._counts is None:
            self._counts = array("Q", bytes(8 * BUCKETS))
        self._counts[_bucket(value_s)] += 1
        self.count += 1

    def clear(self) -> None:
        self.count = 0
        self._counts = None

    @classmethod
    def sum_of(cls, sketches: Iterable[Sketch]) -> Sketch:
        """Return one sketch with the values of all."""
        total = cls()
        for sketch in sketches:
            if sketch._counts is None:
                continue
            if total._counts is None:
                total._counts = array("Q", sketch._counts)
            else:
                total._counts = array("Q", map(int.__add__, total._counts, sketch._counts))
            total.count += sketch.count
        return total

    def percentile(self, share: float) -> float | None:
        """Return the value, in seconds, that a `share` of all values do not exceed."""
        if self._counts is None:
            return None
        rank = max(1, math.ceil(share * self.count))
        for bucket, count in enumerate(self._counts):
            rank -= count
            if rank <= 0:
                return _middle(bucket)
        raise AssertionError("the counts do not add up")


def _bucket(value_s: float) -> int:
    if value_s < LOWEST_S:
        return 0
    at = 1 + int(math.log(value_s / LOWEST_S) / _LOG_GROWTH)
    return min(at, BUCKETS - 1)


def _middle(bucket: int) -> float:
    if bucket == 0:
        return 0.0
    return min(HIGHEST_S, LOWEST_S * math.exp((bucket - 0.5) * _LOG_GROWTH))
