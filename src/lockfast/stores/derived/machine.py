"""Clocks, random numbers and mutexes: the part of a store's network that needs no connection."""

from __future__ import annotations

import random
import threading
import time
from contextlib import AbstractContextManager
from typing import Any, Protocol

from lockfast.runtimes import platform


class Machine(Protocol):
    """What a store knows of the machine it runs on; the simulator has one of its own."""

    def now_ms(self) -> int:
        """Return the time of a monotonic clock."""
        ...

    def wall_us(self) -> int:
        """Return the wall clock in microseconds."""
        ...

    def random_bits(self, bits: int) -> int:
        """Return a random number below 2 ** bits."""
        ...

    def mutex(self) -> AbstractContextManager[Any]:
        """Return a mutex that guards a few assignments; it is never held while waiting."""
        ...


class ThisMachine:
    """The machine that this process runs on."""

    def __init__(self) -> None:
        self._random = random.SystemRandom()

    def now_ms(self) -> int:
        return platform.now_ms()

    def wall_us(self) -> int:
        return time.time_ns() // 1000

    def random_bits(self, bits: int) -> int:
        return self._random.getrandbits(bits)

    def mutex(self) -> AbstractContextManager[Any]:
        return threading.RLock()
