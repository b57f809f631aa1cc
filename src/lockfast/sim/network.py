"""A network that delays, loses, duplicates and reorders messages, and can be cut in either
direction."""

from __future__ import annotations

import random
from bisect import insort
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from lockfast.errors import StoreError
from lockfast.sim.runtime import MS, Host, Kernel, SimSignal

Deliver = Callable[[], None]
RESET_US_MAX: Final = 40 * MS
"""A broken connection is noticed within this, if it is noticed at all."""


class PendingReply(SimSignal):
    """A request under way, and what its client hears of it."""

    __slots__ = ("error", "found")

    def __init__(self, host: Host) -> None:
        super().__init__(host)
        self.found: Any = None
        self.error: StoreError | None = None

    def arrive(self, found: Any) -> None:
        if not self._is_set:
            self.found = found
            self.set()

    def fail(self, error: StoreError) -> None:
        if not self._is_set:
            self.error = error
            self.set()

    def fail_soon(self, error: StoreError) -> None:
        kernel = self._host.kernel
        late_us = 1 + kernel.random.randrange(RESET_US_MAX)
        kernel.arrive(late_us, self._host, partial(self.fail, error))


class Network:
    """Carries messages between hosts. Faults change its fields; `heal` resets them."""

    def __init__(self, kernel: Kernel, base_us: tuple[int, int] = (200, 900)) -> None:
        self.kernel = kernel
        self._least_us, self._spread_us = base_us[0], base_us[1] - base_us[0]
        self.delay_us = 0
        """The maximum extra delay, drawn for each message, so that messages overtake each other."""
        self.loss = 0.0
        self.double = 0.0
        self.reset = 0.0
        """The share of replies that are replaced by a broken connection, after the effect."""
        self.on_lost: Callable[[Host, Host], None] | None = None
        self.messages = 0
        self.lost = 0
        self._cuts: dict[tuple[str, str], int] = {}
        self._random = random.Random(f"{kernel.seed} network")
        self.draw = self._random.random

    def heal(self) -> None:
        self.delay_us = 0
        self.loss = self.double = self.reset = 0.0
        self._cuts.clear()

    def cut(self, source: str, target: str) -> None:
        """Lose every message from one host to another."""
        self._cuts[source, target] = self._cuts.get((source, target), 0) + 1

    def mend(self, source: str, target: str) -> None:
        """Undo one cut."""
        left = self._cuts.get((source, target), 0) - 1
        if left > 0:
            self._cuts[source, target] = left
        else:
            self._cuts.pop((source, target), None)

    def is_cut(self, source: str, target: str) -> bool:
        return (source, target) in self._cuts

    def chance(self, share: float) -> bool:
        return share > 0 and self.draw() < share

    def carry(
        self, source: Host, target: Host, deliver: Deliver, again: Deliver | None = None
    ) -> bool:
        """Deliver a message to a host, or lose it. Return False if the sender knows that it is
        lost. A duplicate is delivered through `again`; None disables duplication."""
        self.messages += 1
        if (self._cuts or self.loss) and self.loses(source, target):
            return False
        transit_us = self._least_us + int(self.draw() * self._spread_us)
        if self.delay_us:
            transit_us += self._delay_us()
        kernel = self.kernel
        # The same as `kernel.arrive`, inlined because most events come from here.
        insort(kernel.queue, (kernel.now + transit_us, next(kernel.serial), target, deliver))
        if self.double and again is not None and self.draw() < self.double:
            late_us = transit_us + self._delay_us() + int(self.draw() * 50 * MS)
            kernel.arrive(late_us, target, again)
        return True

    def transit_us(self) -> int:
        """Return how long a message takes now."""
        transit_us = self._least_us + int(self.draw() * self._spread_us)
        return transit_us + self._delay_us() if self.delay_us else transit_us

    def loses(self, source: Host, target: Host) -> bool:
        """Return True if a message between these hosts is lost now."""
        if not self.is_cut(source.name, target.name) and not self.chance(self.loss):
            return False
        self.lost += 1
        if self.on_lost is not None:
            self.on_lost(source, target)
        return True

    def _delay_us(self) -> int:
        # Most messages are fast and a few are very late: these cause reordering.
        return int(self.draw() ** 3 * self.delay_us)
