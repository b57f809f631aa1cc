"""The events of the last hour, and the figures computed from them.

Figures are kept in slots of ten seconds. A slot counts grants, contended grants, acquires that gave
up and lost leases, and has a sketch of waiting times.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, Final, NamedTuple

from lockfast.flow.admin import WatchEvent
from lockfast.telemetry.sketch import Sketch
from lockfast.telemetry.spans import LOSSES, SpanBuilder

HISTORY_S: Final = 3600
SLOT_S: Final = 10
SLOTS: Final = HISTORY_S // SLOT_S
EVENTS_MAX: Final = 50_000
OPEN_MAX: Final = 200_000
REVOCATIONS_MAX: Final = 1000


class Slot:
    """The figures of ten seconds."""

    __slots__ = ("contended", "gave_up", "grants", "lost", "number", "waits")

    def __init__(self, number: int) -> None:
        self.number = number
        self.grants = self.contended = self.gave_up = self.lost = 0
        self.waits = Sketch()

    def row(self) -> list[Any]:
        """Return the slot as the page receives it: start, counts, p50 and p99 in seconds."""
        return [
            self.number * SLOT_S,
            self.grants,
            self.contended,
            self.gave_up,
            self.lost,
            self.waits.percentile(0.5),
            self.waits.percentile(0.99),
        ]


class Figures:
    """The slots of the last hour."""

    def __init__(self) -> None:
        self._slots: deque[Slot] = deque(maxlen=SLOTS)
        self._builder = SpanBuilder()

    def add(self, event: WatchEvent) -> None:
        """Count an event; call it in the order of the log."""
        builder = self._builder
        known = builder.open.get((event.session, event.n, event.kind, event.name))
        asked = known.asked if known is not None else None
        ended = builder.add(event)
        slot = self._slot(int(event.at) // SLOT_S)
        if event.what == "granted":
            slot.grants += 1
            slot.contended += asked is not None
            slot.waits.add(max(0.0, event.at - asked) if asked is not None else 0.0)
        elif ended is not None and ended.how == "gave_up":
            slot.gave_up += 1
        elif ended is not None and ended.how in LOSSES:
            slot.lost += 1
        if len(builder.open) > OPEN_MAX:
            builder.open.clear()

    def _slot(self, number: int) -> Slot:
        slots = self._slots
        if not slots or number > slots[-1].number:
            slots.append(Slot(number))
        # An event older than the last slot, because the clock was set back, counts in that slot.
        return slots[-1]

    def rows(self, since_s: float = 0) -> list[list[Any]]:
        """Return the slots that end after an instant, oldest first."""
        found = []
        for slot in reversed(self._slots):
            if (slot.number + 1) * SLOT_S <= since_s:
                break
            found.append(slot.row())
        return found[::-1]


class Revocation(NamedTuple):
    """A revocation requested through this server."""

    session: str
    n: int
    by: str
    reason: str


class History:
    """The events of the last hour, at most EVENTS_MAX."""

    def __init__(self) -> None:
        self.events: deque[WatchEvent] = deque(maxlen=EVENTS_MAX)
        self.figures = Figures()
        self.begins: float | None = None
        """The instant since which the history is complete, by the store's clock; None if empty."""
        self._revocations: deque[Revocation] = deque(maxlen=REVOCATIONS_MAX)

    def add(self, event: WatchEvent) -> None:
        if self.begins is None:
            self.begins = event.at
        events = self.events
        if len(events) == EVENTS_MAX:
            self.begins = events[0].at
        events.append(event)
        while events and events[0].at < event.at - HISTORY_S:
            self.begins = events.popleft().at
        self.figures.add(event)

    def clear(self) -> None:
        self.events.clear()
        self.figures = Figures()
        self.begins = None

    def of(self, kind: str, name: str) -> list[WatchEvent]:
        """Return the events of one lock, oldest first."""
        return [event for event in self.events if (event.kind, event.name) == (kind, name)]

    def figures_for(self, is_shown: Callable[[str], bool]) -> Figures:
        """Return the figures of the events whose names may be shown."""
        made = Figures()
        for event in self.events:
            if is_shown(event.name):
                made.add(event)
        return made

    def note_revocation(self, revocation: Revocation) -> None:
        self._revocations.append(revocation)

    def revoked_by(self, events: Iterable[WatchEvent]) -> dict[int, str]:
        """Return who revoked, by event position, as far as this server knows."""
        known = {(one.session, one.n): one.by for one in self._revocations}
        return {
            event.position: known[event.session, event.n]
            for event in events
            if event.what == "revoked" and (event.session, event.n) in known
        }
