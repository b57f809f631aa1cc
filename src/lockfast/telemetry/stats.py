"""Health figures of a client over sliding windows, in constant memory.

Each window is a ring of slots that are reused as time passes. A window of 1 minute has 12 slots
of 5 seconds, so it covers the last 55 to 60 seconds; the longer windows have 15 slots of a
minute and 12 of five minutes. Figures are kept overall and for the first PREFIXES_MAX prefixes;
later prefixes share the entry `OTHER`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

from lockfast import events as e
from lockfast.runtimes.platform import now_us
from lockfast.telemetry.sketch import Sketch

PREFIXES_MAX: Final = 32
OTHER: Final = "(other)"


class Window(NamedTuple):
    """The length of a sliding window, and of the slots it is made of."""

    name: str
    seconds: int
    slot_s: int


WINDOWS: Final = (Window("1m", 60, 5), Window("15m", 900, 60), Window("1h", 3600, 300))


class Percentiles(NamedTuple):
    """Percentiles of a duration in seconds; None without values. Off by at most 5 %."""

    count: int  # type: ignore[assignment]  # hides tuple.count
    p50: float | None
    p95: float | None
    p99: float | None


class Figures(NamedTuple):
    """The figures of one window."""

    acquisition: Percentiles
    """From the call of acquire to the grant."""
    hold: Percentiles
    """From the grant to the release or loss."""
    acquires: int
    """Acquires that ended, granted or not."""
    granted: int
    contended: int
    """Acquires that met another holder: they waited, or gave up at once."""
    timeouts: int
    """Acquires that gave up because the lock was taken (also `try_acquire`)."""
    lost: int
    """Leases lost."""
    refused: int
    """Stale tokens that guards of this process refused; only counted overall."""
    deadlocks: int
    """Deadlocks found; only counted overall, unless the figures come from a store's log."""

    @property
    def contention_rate(self) -> float:
        """The share of acquires that met another holder."""
        return self.contended / self.acquires if self.acquires else 0.0

    @property
    def timeout_rate(self) -> float:
        """The share of acquires that gave up because the lock was taken."""
        return self.timeouts / self.acquires if self.acquires else 0.0


class Stats(NamedTuple):
    """Figures of a client, overall and per prefix of lock names, for each window."""

    since: float
    """For how many seconds figures have been collected; windows cover no more than that."""
    overall: dict[str, Figures]
    """By window: "1m", "15m", "1h"."""
    by_prefix: dict[str, dict[str, Figures]]
    """By prefix, the part of a name before its first `/` or `:`, then by window."""


_COUNTS: Final = (
    "acquires", "granted", "contended", "timeouts", "lost", "refused", "deadlocks",
)  # fmt: skip


class _Slot:
    __slots__ = ("counts", "hold", "number", "wait")

    def __init__(self) -> None:
        self.number = -1
        self.wait = Sketch()
        self.hold = Sketch()
        self.counts = [0] * len(_COUNTS)

    def begin(self, number: int) -> None:
        self.number = number
        self.wait.clear()
        self.hold.clear()
        self.counts = [0] * len(_COUNTS)


class _Series:
    """All windows of one prefix."""

    def __init__(self) -> None:
        self._rings = [[_Slot() for _ in range(w.seconds // w.slot_s)] for w in WINDOWS]

    def slots(self, at_us: int) -> Iterator[_Slot]:
        """Return the slot of each window into which this instant falls."""
        for window, ring in zip(WINDOWS, self._rings, strict=True):
            number = at_us // (window.slot_s * 1_000_000)
            slot = ring[number % len(ring)]
            if slot.number < number:
                slot.begin(number)
            # A late event of an earlier round counts as one of the current round.
            yield slot

    def figures(self, now_us: int) -> dict[str, Figures]:
        found = {}
        for window, ring in zip(WINDOWS, self._rings, strict=True):
            newest = now_us // (window.slot_s * 1_000_000)
            live = [slot for slot in ring if newest - len(ring) < slot.number <= newest]
            counts = [sum(slot.counts[at] for slot in live) for at in range(len(_COUNTS))]
            found[window.name] = Figures(
                _percentiles(Sketch.sum_of(slot.wait for slot in live)),
                _percentiles(Sketch.sum_of(slot.hold for slot in live)),
                *counts,
            )
        return found


def _percentiles(sketch: Sketch) -> Percentiles:
    return Percentiles(
        sketch.count, sketch.percentile(0.5), sketch.percentile(0.95), sketch.percentile(0.99)
    )


class Collector:
    """An observer that collects figures. One thread writes; any thread may read."""

    def __init__(self) -> None:
        self.reset()
        self._actions: dict[type, Callable[[Any], None]] = {
            e.AcquireGranted: self._granted,
            e.AcquireGaveUp: self._gave_up,
            e.LeaseReleased: self._over,
            e.LeaseLost: self._over,
            e.DeadlockFound: self._deadlock,
            e.GuardRefused: self._refused,
        }

    def reset(self) -> None:
        """Reset the figures; also called in a forked child, which collects its own."""
        self._began_us = now_us()
        self._overall = _Series()
        self._by_prefix: dict[str, _Series] = {}

    def __call__(self, event: e.Event) -> None:
        action = self._actions.get(type(event))
        if action is not None:
            action(event)

    def stats(self, at_us: int | None = None) -> Stats:
        """Return the figures of all windows that end now, or at `at_us`."""
        end_us = now_us() if at_us is None else at_us
        return Stats(
            (end_us - self._began_us) / 1e6,
            self._overall.figures(end_us),
            {
                prefix: series.figures(end_us)
                for prefix, series in sorted(self._by_prefix.copy().items())
            },
        )

    def waited(self, at_us: int, name: str, wait_us: int, contended: bool) -> None:
        """Count an acquire that was granted."""
        for slot in self._slots(at_us, name):
            slot.wait.add(wait_us / 1e6)
            _count(slot, "acquires", "granted", "contended" if contended else "")

    def gave_up(self, at_us: int, name: str, contended: bool, timeout: bool) -> None:
        """Count an acquire that was not granted."""
        for slot in self._slots(at_us, name):
            _count(
                slot, "acquires", "contended" if contended else "", "timeouts" if timeout else ""
            )

    def held(self, at_us: int, name: str, hold_us: int, lost: bool) -> None:
        """Count a lease that has ended."""
        for slot in self._slots(at_us, name):
            slot.hold.add(hold_us / 1e6)
            _count(slot, "lost" if lost else "")

    def deadlock(self, at_us: int, name: str = "") -> None:
        """Count a deadlock."""
        for slot in self._slots(at_us, name):
            _count(slot, "deadlocks")

    def _slots(self, at_us: int, name: str) -> Iterator[_Slot]:
        yield from self._overall.slots(at_us)
        if name:
            prefix = prefix_of(name)
            series = self._by_prefix.get(prefix)
            if series is None:
                if len(self._by_prefix) >= PREFIXES_MAX:
                    prefix = OTHER
                series = self._by_prefix.setdefault(prefix, _Series())
            yield from series.slots(at_us)

    def _granted(self, event: e.AcquireGranted) -> None:
        self.waited(event.at_us, event.subject.name, event.wait_us, event.contended)

    def _gave_up(self, event: e.AcquireGaveUp) -> None:
        taken = event.why in (e.GAVE_UP_TIMEOUT, e.GAVE_UP_BUSY)
        self.gave_up(event.at_us, event.subject.name, event.contended or taken, taken)

    def _over(self, event: e.LeaseReleased | e.LeaseLost) -> None:
        lost = isinstance(event, e.LeaseLost)
        self.held(event.at_us, event.subject.name, event.hold_us, lost)

    def _deadlock(self, event: e.DeadlockFound) -> None:
        self.deadlock(event.at_us)

    def _refused(self, event: e.GuardRefused) -> None:
        for slot in self._slots(event.at_us, ""):
            _count(slot, "refused")


def prefix_of(name: str) -> str:
    """Return the part of a lock name before its first `/` or `:`."""
    for at, character in enumerate(name):
        if character in "/:":
            return name[:at]
    return name


def _count(slot: _Slot, *whats: str) -> None:
    for what in whats:
        if what:
            slot.counts[_COUNTS.index(what)] += 1
