"""What a client knows of the leader's clock: bounds, from the answers to its own writes.

A write is dated by the leader between its sending and the arrival of its answer, which may be much
later if this process was stopped. So of recent answers, the one that shows the latest time gives
the lower bound of the leader's clock, and the one that shows the earliest gives the upper bound.
Bounds become wider with time, since the two clocks may run at different rates. An answer that
contradicts them shows that the leader's clock has been set, and replaces both.

Whatever must not end early, such as a closing or another client's `max_hold`, is judged by the
lower bound; how long ago a claim of our own was granted, by the upper bound.
"""

from __future__ import annotations

from typing import Final, NamedTuple

DRIFT_SHARE: Final = 40
"""Clocks drift apart by at most one part in so many."""


class _Bound(NamedTuple):
    """How far the leader's clock was ahead of our monotonic clock, at most or at least."""

    ahead_ms: int
    found_ms: int

    def drift_ms(self, now_ms: int) -> int:
        return -(-(now_ms - self.found_ms) // DRIFT_SHARE)


class LeadersClock:
    def __init__(self, ahead_ms: int) -> None:
        """`ahead_ms`: an estimate until the first write."""
        self._lower = self._upper = _Bound(ahead_ms, 0)
        self.has_heard = False

    def heard(self, mtime_ms: int, sent_ms: int, now_ms: int, *, is_first: bool) -> None:
        """Record when a write was dated; `is_first`: it is the first by this leader.

        All times are cut to whole milliseconds, hence the one that is added.
        """
        lower = _Bound(mtime_ms - now_ms - 1, now_ms)
        upper = _Bound(mtime_ms - sent_ms + 1, sent_ms)
        is_behind = upper.ahead_ms + now_ms < self.at_least_ms(now_ms)
        is_ahead = lower.ahead_ms + now_ms > self.at_most_ms(now_ms)
        # If the bounds contradict each other, the clock has been set.
        is_new = is_first or is_behind or is_ahead or not self.has_heard
        if is_new or lower.ahead_ms + now_ms >= self.at_least_ms(now_ms):
            self._lower = lower
        if is_new or upper.ahead_ms + now_ms <= self.at_most_ms(now_ms):
            self._upper = upper
        self.has_heard = True

    def at_least_ms(self, now_ms: int) -> int:
        """Return what the leader's clock shows at the least when ours shows `now_ms`."""
        drift_ms = self._lower.drift_ms(now_ms) if self.has_heard else 0
        return now_ms + self._lower.ahead_ms - drift_ms

    def at_most_ms(self, now_ms: int) -> int:
        """Return what the leader's clock shows at the most when ours shows `now_ms`."""
        drift_ms = self._upper.drift_ms(now_ms) if self.has_heard else 0
        return now_ms + self._upper.ahead_ms + drift_ms

    def doubt_ms(self, now_ms: int) -> int:
        """Return how far the bounds are apart."""
        return self.at_most_ms(now_ms) - self.at_least_ms(now_ms)
