"""Keep the order of arrival though the clocks of clients differ.

A waiting key contains the claim's rank: the instant at which it entered, by the wall clock of its
client, less the head start of its priority. A client whose clock is behind would overtake claims
that stand in line already. So whoever joins a line reads its tail first, or compares that nobody
stands behind its place, and enters no earlier than anybody it finds there.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from lockfast.core.rows import arrival_of
from lockfast.stores.etcd import layout as k
from lockfast.stores.etcd.requests import Kv, Range

TAIL_READ: Final = 16
"""Claims of lower priority may stand last, so one key of the tail is not enough."""


def tail_of(prefix: str) -> Range:
    return Range(f"{prefix}w\x1f", f"{prefix}w ", TAIL_READ, True)


def lag_ms(tail: Iterable[Kv], now_ms: int, arrival: int) -> int:
    """How far our clock is behind the entries of those who wait."""
    lag = 0
    for kv in tail:
        claim, _ = k.claim_from(k.parse_place(kv.key), kv)
        lag = max(lag, claim.entered_ms - now_ms + (arrival_of(claim.rank) >= arrival))
    return lag
