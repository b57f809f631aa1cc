"""The row port of the lock table over the database: cache, hot row, spilled rows.

A row is in at most three places. In the order in which they are asked:

    cache     as an object, if this process has used it since anybody else wrote
    hot row   as text, if it was written since the last spill
    spilled   as text, in the table of rows

A step changes rows in the cache; `commit` puts their texts into the hot row.
"""

from __future__ import annotations

from typing import Any, Final

from lockfast.core.commands import Event
from lockfast.core.rows import META_KEY, ResourceRow, Row, opening_key, resource_key
from lockfast.stores.sqlite import hot as hot_row
from lockfast.stores.sqlite import spilled
from lockfast.stores.sqlite.hot import ADDED, CHANGED, DELETED, NEVER_MS, HotRow, text_of
from lockfast.stores.sqlite.log import EventLog
from lockfast.stores.sqlite.packing import PACKERS, UnreadableError, unpack
from lockfast.stores.sqlite.spilled import Connection, SpilledLog, SpilledRows

SCHEMA: Final = (*hot_row.SCHEMA, *spilled.SCHEMA)

CACHED_MAX: Final = 2000
EVERYTHING: Final = 1 << 60
PAGE_BYTES: Final = 8192
HOT_MAX = 7500
"""The capacity of the hot row in characters. With its other columns it then fits one page, which is
all that most transactions write. Twelve processes contending for one lock need about this much."""


class SqliteRows:
    """Rows for the table. The caller begins and ends the transaction around every use."""

    def __init__(self, connection: Connection) -> None:
        self.hot = HotRow(connection.execute)
        self.spilled = SpilledRows(connection)
        self.log = EventLog(self.hot, SpilledLog(connection))
        self._cache: dict[str, Any] = {}
        self._writes: dict[str, Any] = {}
        """What this step wrote; None for a deleted row."""
        self._added: set[str] = set()
        """The keys among them that had no row before."""

    # ── steps ────────────────────────────────────────────────────────────────────────

    def start(self, now_ms: int) -> None:
        """Begin a step that writes. Raises UnreadableError if the hot row is damaged."""
        self.look()
        self.log.drop_if_unread(now_ms)

    def look(self) -> None:
        """Begin to read. Rows in the cache are reused if no other process wrote since."""
        if not self.hot.is_current() or len(self._cache) >= CACHED_MAX:
            self.hot.load()
            self._cache = {META_KEY: self.hot.meta}

    def commit(self) -> None:
        """Write the step to the database; the caller then commits the transaction."""
        hot = self.hot
        hot.meta = self._cache[META_KEY]
        recent, added = hot.recent, self._added
        self._writes.pop(META_KEY, None)
        for key, row in self._writes.items():
            before = recent.get(key)
            is_new = key in added if before is None else before[0] == ADDED
            if row is not None:
                recent[key] = (ADDED if is_new else CHANGED) + PACKERS[type(row)](row)
            elif is_new:
                recent.pop(key, None)
            else:
                recent[key] = DELETED
        self._writes = {}
        self._added = set()
        rows, log = hot.packed()
        if len(rows) + len(log) > HOT_MAX:
            self.spill()
            rows = log = ""
        hot.save(rows, log)

    def spill(self) -> None:
        """Move the contents of the hot row to the tables."""
        recent, self.hot.recent = self.hot.recent, {}
        self.spilled.change(
            [(key, change[1:]) for key, change in recent.items() if change != DELETED],
            [key for key, change in recent.items() if change == DELETED],
        )
        self.log.spill()

    def forget(self) -> None:
        """Discard the cache: a step failed and its transaction was rolled back."""
        self.hot.version = -1
        self._cache = {}
        self._writes = {}
        self._added = set()

    def open(self, boot: str, now_ms: int, wall_ms: int) -> None:
        """Continue from the stored state. Sessions do not survive a reboot; counters, log and
        windows do. A hot row that cannot be read is left to the first command, which reports it, so
        that `doctor` and `reset` can open the database."""
        try:
            self.look()
        except UnreadableError:
            return
        known, _, clocks = self.hot.boot.partition(" ")
        if known != boot:
            windows = self._windows_left(clocks, wall_ms)
            self.hot.boot = f"{boot} {now_ms},{wall_ms}"
            if self.log.is_written:
                self.log.extend(now_ms)
            self.clear()
            for resource, left_ms in windows:
                self._close(resource, now_ms + left_ms)
            if windows:
                self.commit()

    def _windows_left(self, clocks: str, wall_ms: int) -> list[tuple[ResourceRow, int]]:
        """Return the resources that were closed before a reboot, and for how long they still are.

        The clock that they were closed by started again. The wall clock tells how much time has
        passed since the previous boot opened the file (`clocks`: both clocks at that instant). If
        the wall clock was set back, a window is at most as long as it was then.
        """
        try:
            then_ms, then_wall_ms = map(int, clocks.split(","))
        except ValueError:
            return []
        passed_ms = max(0, wall_ms - then_wall_ms)
        closed = [
            row
            for _, row in self.scan("r", "r ", EVERYTHING)
            if isinstance(row, ResourceRow) and row.closed_ms
        ]
        left = [(row, row.closed_ms - then_ms - passed_ms) for row in closed]
        return [(row, left_ms) for row, left_ms in left if left_ms > 0]

    def _close(self, resource: ResourceRow, until_ms: int) -> None:
        kind, name = resource.kind, resource.name
        self.add(resource_key(kind, name), ResourceRow(kind, name, closed_ms=until_ms))
        self.add(opening_key(until_ms, kind, name), "")
        self.hot.meta.due_ms = min(self.hot.meta.due_ms, until_ms)

    def clear(self) -> None:
        """Delete every row except the counters."""
        self.spilled.clear()
        self.hot.recent = {}
        self.hot.meta.due_ms = NEVER_MS
        self.hot.meta.watchers = 0
        self._cache = {META_KEY: self.hot.meta}
        self.commit()

    def reset(self) -> tuple[int, int]:
        """Delete every row except the counters; return how many sessions and locks there were."""
        self.forget()
        try:
            self.hot.load()
        except UnreadableError:
            self.hot.recreate()
        counts = []
        for family in "sr":
            prefix = f"{family}\x1f"
            keys = {key for key, _ in self.spilled.scan(prefix, f"{family}\x20", EVERYTHING)}
            for key, change in self.hot.recent.items():
                if key.startswith(prefix):
                    (keys.discard if change == DELETED else keys.add)(key)
            counts.append(len(keys))
        self.clear()
        return counts[0], counts[1]

    # ── the port ─────────────────────────────────────────────────────────────────────

    @property
    def logs(self) -> bool:
        return self.hot.log_until_ms > 0

    def get(self, key: str) -> Any:
        try:
            return self._cache[key]
        except KeyError:
            return self._fetch(key)

    def _fetch(self, key: str) -> Any:
        return self._decode(key, None if key in self.hot.recent else self.spilled.get(key))

    def _decode(self, key: str, spilled: str | None) -> Any:
        """Put a row into the cache, from the hot row if it is there."""
        change = self.hot.recent.get(key)
        text = spilled if change is None else text_of(key, change)
        row = self._cache[key] = None if text is None else unpack(key, text)
        return row

    def put(self, key: str, row: Row) -> None:
        self._cache[key] = self._writes[key] = row

    def add(self, key: str, row: Row) -> None:
        if key not in self._writes:
            self._added.add(key)
        self._cache[key] = self._writes[key] = row

    def delete(self, key: str) -> None:
        self._cache[key] = self._writes[key] = None

    def scan(
        self, start: str, stop: str, limit: int, reverse: bool = False
    ) -> list[tuple[str, Any]]:
        # The keys that the table may not have yet: those of the hot row and of this step.
        keys = {key for key in self.hot.recent if start <= key < stop}
        keys.update([key for key in self._writes if start <= key < stop])
        spilled = dict(self.spilled.scan(start, stop, limit + len(keys), reverse))
        keys.update(spilled)
        rows: list[tuple[str, Any]] = []
        for key in sorted(keys, reverse=reverse):
            if len(rows) == limit:
                break
            cached = key in self._cache
            row = self._cache[key] if cached else self._decode(key, spilled.get(key))
            if row is not None:
                rows.append((key, row))
        return rows

    def append(self, event: Event) -> None:
        self.log.append(event)

    def events(self, after: int, limit: int) -> list[Event]:
        return self.log.events(after, limit)

    def oldest(self) -> int | None:
        return self.log.oldest()
