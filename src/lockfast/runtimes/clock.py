"""The clock leases are measured by: it never goes back and counts time asleep."""

from __future__ import annotations

import time
from time import clock_gettime_ns
from typing import Final

# macOS has no CLOCK_BOOTTIME: there, CLOCK_MONOTONIC counts time asleep (and CLOCK_UPTIME_RAW
# does not).
_CLOCK: Final[int] = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def now_us() -> int:
    return clock_gettime_ns(_CLOCK) // 1000


def now_ms() -> int:
    return clock_gettime_ns(_CLOCK) // 1_000_000
