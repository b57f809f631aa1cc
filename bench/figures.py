"""The statistics that the tables need."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

__all__ = ["Summary", "jain_index", "summary"]


@dataclass(frozen=True)
class Summary:
    median: float
    p99: float
    count: int


def summary(values: Sequence[float]) -> Summary:
    """Return median and p99 by nearest rank; with fewer than 100 values p99 is the maximum."""
    ordered = sorted(values)
    rank = -(-99 * len(ordered) // 100)
    return Summary(median(ordered), ordered[rank - 1], len(ordered))


def jain_index(shares: Sequence[int]) -> float:
    """Return 1 if all shares are equal, 1/n if one has everything."""
    squares = sum(share * share for share in shares)
    return sum(shares) ** 2 / (len(shares) * squares) if squares else 1.0
