"""The clock leases are measured by: it never goes back and counts time asleep."""

from __future__ import annotations

import time

if hasattr(time, "CLOCK_BOOTTIME"):

    def now_ms() -> int:
        return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000

else:
    # macOS: CLOCK_MONOTONIC counts time asleep there, CLOCK_UPTIME_RAW does not.
    def now_ms() -> int:
        return time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1_000_000
