"""Claims reconstructed from a store's log of events: when each waited, held and ended."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lockfast.flow.admin import WatchEvent
from lockfast.telemetry.stats import Collector

LOSSES = ("expired", "revoked")


class EventFileError(ValueError):
    """A file does not contain events of `lockfast watch --json`."""


@dataclass
class Span:
    """One claim at one lock. Times are seconds of one clock."""

    kind: str
    name: str
    mode: str
    owner: str
    token: int | None = None
    asked: float | None = None
    """When it began to wait; None if it was granted at once, or before the log begins."""
    granted: float | None = None
    """When it was granted; None if it never was, or if the log begins later."""
    ended: float | None = None
    """When it ended; None while it lasts."""
    how: str = ""
    """How it ended: released, gave_up, expired or revoked."""
    detail: str = ""

    @property
    def waited(self) -> float:
        """How long it waited; 0.0 if it was granted at once."""
        if self.asked is None:
            return 0.0
        until = self.granted if self.granted is not None else self.ended
        return max(0.0, until - self.asked) if until is not None else 0.0

    @property
    def held(self) -> float | None:
        if self.granted is None or self.ended is None:
            return None
        return max(0.0, self.ended - self.granted)

    @property
    def was_lost(self) -> bool:
        return self.granted is not None and self.how in LOSSES

    @property
    def outcome(self) -> str:
        """How it ended and why. The detail of a revocation already begins with "revoked"."""
        how = self.how.replace("_", " ")
        if self.detail.startswith(how):
            return self.detail
        return f"{how}: {self.detail}" if self.detail else how


class SpanBuilder:
    """Applies events, oldest first, and keeps the claims that have not ended yet."""

    def __init__(self) -> None:
        self.open: dict[tuple[str, int, str, str], Span] = {}

    def add(self, event: WatchEvent) -> Span | None:
        """Apply one event. Return its claim if the event ended it."""
        key = (event.session, event.n, event.kind, event.name)
        span = self.open.get(key)
        if span is None:
            span = Span(event.kind, event.name, event.mode, event.owner)
            if event.what in ("waiting", "granted", "converting", "converted", "proclaimed"):
                self.open[key] = span
        span.owner = event.owner or span.owner
        if event.what == "waiting":
            if span.asked is None:
                span.asked = event.at
        elif event.what == "granted":
            span.granted, span.token = event.at, event.token
        elif event.what == "converted":
            span.mode, span.token = event.mode, event.token
        elif event.what in ("released", "gave_up", "expired", "revoked"):
            if event.what == "gave_up" and span.granted is not None:
                return None  # a conversion was cancelled; the claim stays held
            span.ended, span.how, span.detail = event.at, event.what, event.detail
            self.open.pop(key, None)
            return span
        return None


def spans_of(events: Iterable[WatchEvent]) -> list[Span]:
    """Return every claim in the events, ended ones first."""
    builder = SpanBuilder()
    found: list[Span] = []
    for event in events:
        ended = builder.add(event)
        if ended is not None:
            found.append(ended)
    return [*found, *builder.open.values()]


def collect(collector: Collector, builder: SpanBuilder, event: WatchEvent) -> None:
    """Count one event of a store's log in health figures."""
    at_us = int(event.at * 1e6)
    key = (event.session, event.n, event.kind, event.name)
    known = builder.open.get(key)
    asked = known.asked if known is not None else None
    ended = builder.add(event)
    if event.what == "granted":
        wait_us = int((event.at - asked) * 1e6) if asked is not None else 0
        collector.waited(at_us, event.name, max(0, wait_us), contended=asked is not None)
    elif ended is not None and ended.how == "gave_up":
        deadlock = event.detail == "deadlock"
        collector.gave_up(at_us, event.name, contended=True, timeout=not deadlock)
        if deadlock:
            collector.deadlock(at_us, event.name)
    elif ended is not None and ended.granted is not None:
        held_us = int((event.at - ended.granted) * 1e6)
        collector.held(at_us, event.name, max(0, held_us), lost=ended.was_lost)


def read_events(path: Path) -> Iterator[WatchEvent]:
    """Read the output of `lockfast watch --json`; raises EventFileError."""
    try:
        with open(path, encoding="utf-8") as file:
            for number, line in enumerate(file, 1):
                event = _parsed(path, number, line)
                if event is not None:
                    yield event
    except (OSError, UnicodeDecodeError) as error:
        raise EventFileError(f"{path} cannot be read: {error}") from None


_TYPES: dict[str, tuple[type, ...]] = {
    "position": (int,),
    "at": (int, float),
    "n": (int,),
    "token": (int, type(None)),
}


def _parsed(path: Path, number: int, line: str) -> WatchEvent | None:
    try:
        entry: Any = json.loads(line)
    except ValueError:
        entry = None
    if isinstance(entry, dict) and entry.get("what") == "gap":
        return None
    if not isinstance(entry, dict) or not set(WatchEvent._fields) <= set(entry):
        raise EventFileError(f"{path}, line {number}: not an event of `lockfast watch --json`")
    for field in WatchEvent._fields:
        if not isinstance(entry[field], _TYPES.get(field, (str,))):
            raise EventFileError(f"{path}, line {number}: {field} is {entry[field]!r}")
    return WatchEvent(*(entry[field] for field in WatchEvent._fields))
