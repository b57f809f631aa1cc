"""Wait for something that happens in another process."""

from __future__ import annotations

import time
from collections.abc import Callable

WAIT_S = 60.0


def until(condition: Callable[[], object], what: str) -> None:
    give_up = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < give_up, f"{what} has not happened after {WAIT_S} s"
        time.sleep(0.02)
