"""A lock table with a clock that tests set, and rows that check how the table uses them."""

from __future__ import annotations

import pickle
from typing import Any

from lockfast.core import commands as c
from lockfast.core.commands import READS
from lockfast.core.memory_rows import MemoryRows
from lockfast.core.rows import ResourceRow, Row
from lockfast.core.table import Limits, Table


class TableDriver:
    """Sends commands for sessions by name, and collects the wakes."""

    def __init__(self, rows: MemoryRows | None = None, limits: Limits | None = None) -> None:
        self.rows = rows if rows is not None else MemoryRows()
        self.table = Table(self.rows, limits)
        self.now_ms = 1_000
        self.wall_us = 5_000_000
        self.wakes: list[c.Wake] = []
        """The wakes of the last command that was not a read."""
        self._numbers: dict[str, int] = {}
        self._steps = 0

    def do(self, command: c.Command) -> Any:
        reply, wakes = self.table.apply(command, self.now_ms, self.wall_us)
        if type(command) not in READS:
            self.wakes = wakes
        else:
            assert not wakes, f"{command} only reads, and wakes {wakes}"
        return reply

    def wait(self, ms: int) -> None:
        """Advance the clock; nothing expires before the next command."""
        self.now_ms += ms
        self.wall_us += ms * 1000

    def tick(self, ms: int = 0) -> None:
        """Advance the clock, and let the table do what is due."""
        self.wait(ms)
        self.do(c.Expel("nobody", "time passes"))

    def open(self, *sessions: str, ttl_ms: int = 60_000) -> None:
        for session in sessions:
            self.do(c.Open(session, ttl_ms, owner=f"{session}@host", inbox=f"{session}'s inbox"))

    def enter(self, session: str, *places: c.Place, **options: Any) -> Any:
        """Enter the session's next claim; open the session if it is new."""
        if session not in self._numbers:
            self.open(session)
        n = options.pop("n", self._numbers.get(session, 0) + 1)
        self._numbers[session] = max(n, self._numbers.get(session, 0))
        return self.do(c.Enter(session, n, places, **options))

    def leave(self, session: str, n: int = 1, close_ms: int = 0) -> Any:
        return self.do(c.Leave(session, n, close_ms=close_ms))

    def convert(self, session: str, mode: str, n: int = 1, queue: bool = True) -> Any:
        self._steps += 1
        return self.do(c.Convert(session, n, self._steps, mode, queue))

    def renew(self, session: str, *waiting: int, **options: Any) -> Any:
        return self.do(c.Renew(session, waiting=waiting, **options))

    def look(self, session: str, n: int = 1) -> Any:
        return self.do(c.Look(session, n))

    def inspect(self, place: c.Place) -> c.ResourceView:
        view: c.ResourceView = self.do(c.Inspect(place.kind, place.name))
        return view

    def holders(self, place: c.Place) -> set[str]:
        return {claim.session for claim in self.inspect(place).holders}

    def waiting(self, place: c.Place) -> list[str]:
        return [claim.session for claim in self.inspect(place).waiting]

    def told(self, what: str) -> list[str]:
        """Return the sessions that got this wake from the last command, in order."""
        return [wake.session for wake in self.wakes if wake.what == what]

    def events(self, after: int = 0) -> list[tuple[str, str, str]]:
        """Return the events after a position: what, which session, which name."""
        reply: c.EventsReply = self.do(c.Events(after))
        return [(event.what, event.session, event.name) for event in reply.events]


def lock(name: str, mode: str = "exclusive") -> c.Place:
    return c.Place("lock", name, mode)


def permits(weight: int, limit: int = 4, name: str = "api") -> c.Place:
    return c.Place("semaphore", name, "permit", weight, limit)


def tree(name: str, mode: str) -> tuple[c.Place, ...]:
    """Return the places of a tree lock: an intention on each ancestor, then the node."""
    intent = "intent_exclusive" if mode == "exclusive" else "intent_shared"
    parts = name.split("/")
    above = ["/".join(parts[:i]) for i in range(1, len(parts))]
    return (*(c.Place("tree", each, intent) for each in above), c.Place("tree", name, mode))


class CopyingRows(MemoryRows):
    """Rows as in a database: `get` returns a copy, and only `put` changes the stored row."""

    __slots__ = ()

    def get(self, key: str) -> Any:
        return _copy(super().get(key))

    def put(self, key: str, row: Row) -> None:
        super().put(key, _copy(row))

    def scan(
        self, start: str, stop: str, limit: int, reverse: bool = False
    ) -> list[tuple[str, Any]]:
        return [(key, _copy(row)) for key, row in super().scan(start, stop, limit, reverse)]


def _copy(row: Any) -> Any:
    return row if row is None or isinstance(row, str) else pickle.loads(pickle.dumps(row))


class AuditedTable(Table):
    """A table whose counts are checked against its claims after every step."""

    def apply(self, command: c.Command, now_ms: int, wall_us: int) -> tuple[c.Reply, list[c.Wake]]:
        answer = super().apply(command, now_ms, wall_us)
        if type(command) not in READS:
            self._audit()
        return answer

    def _audit(self) -> None:
        """Check that each resource's row agrees with its claims and lines."""
        claims = [claim for _, claim in self.rows.scan("c\x1f", "c\x20", 1_000_000)]
        for _, found in self.rows.scan("r\x1f", "r\x20", 1_000_000):
            books = ResourceRow(found.kind, found.name)
            lines: dict[str, set[str]] = {"h": set(), "v": set(), "w": set()}
            for claim in claims:
                for i, place in enumerate(claim.places):
                    if place[:2] != (found.kind, found.name):
                        continue
                    size = place.weight if place.mode == "permit" else 1
                    if claim.state == "holding":
                        books.held[place.mode] = books.held.get(place.mode, 0) + size
                        books.holders += 1
                        books.retained += claim.block > 1
                        lines["h"].add(claim.rank)
                    elif claim.passed >> i & 1:
                        books.reserved[place.mode] = books.reserved.get(place.mode, 0) + size
                        books.reservations += 1
                        lines["v"].add(claim.rank)
                    else:
                        books.waiting += 1
                        lines["w"].add(claim.rank)
            for name in ("held", "reserved", "holders", "retained", "reservations", "waiting"):
                assert getattr(found, name) == getattr(books, name), f"{name} of {found}"
            if found.sole:
                assert lines["h"] == {found.sole.split("\x1f")[0]}, f"sole holder of {found}"
                lines["h"] = set()
            for line, ranks in lines.items():
                prefix = f"{line}\x1f{found.kind}\x1f{found.name}\x1f"
                keys = self.rows.scan(prefix, prefix[:-1] + "\x20", 1_000_000)
                assert {key[len(prefix) :] for key, _ in keys} == ranks, f"line {line} of {found}"


class CountingRows(MemoryRows):
    """Rows that count how many were accessed, and the scans among the accesses."""

    __slots__ = ("scans", "touched")

    def __init__(self) -> None:
        super().__init__()
        self.touched = 0
        self.scans = 0

    def get(self, key: str) -> Any:
        self.touched += 1
        return super().get(key)

    def put(self, key: str, row: Row) -> None:
        self.touched += 1
        super().put(key, row)

    def delete(self, key: str) -> None:
        self.touched += 1
        super().delete(key)

    def scan(
        self, start: str, stop: str, limit: int, reverse: bool = False
    ) -> list[tuple[str, Any]]:
        found = super().scan(start, stop, limit, reverse)
        self.scans += 1
        self.touched += 1 + len(found)
        return found
