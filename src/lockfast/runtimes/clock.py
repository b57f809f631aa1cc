"""The clock of leases: monotonic, and it also advances while the machine is suspended."""

from __future__ import annotations

import time
from time import clock_gettime_ns
from typing import Final

# macOS has no CLOCK_BOOTTIME, but its CLOCK_MONOTONIC advances during sleep (unlike
# CLOCK_UPTIME_RAW).
_CLOCK: Final[int] = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def now_us() -> int:
    return clock_gettime_ns(_CLOCK) // 1000


def now_ms() -> int:
    return clock_gettime_ns(_CLOCK) // 1_000_000
