"""The log of events: written while somebody reads it and for ten minutes after.

Reading (`Events`) begins the log, or extends it when less than half of its time is left. When
that is over and nobody watches, the log is dropped as a whole, so that what is kept never has a
gap. Positions are counted all the time, whether or not entries are written.
"""

from __future__ import annotations

from lockfast.core.commands import Event
from lockfast.core.rows import LOG_KEPT, LOG_KEPT_MS
from lockfast.stores.sqlite.hot import HotRow
from lockfast.stores.sqlite.packing import pack_event, position_of, unpack_event
from lockfast.stores.sqlite.spilled import SpilledLog


class EventLog:
    """The newest entries are in the hot row, older ones in a table."""

    def __init__(self, hot: HotRow, spilled: SpilledLog) -> None:
        self._hot = hot
        self._spilled = spilled

    @property
    def is_written(self) -> bool:
        return self._hot.log_until_ms > 0

    def ends_soon(self, now_ms: int) -> bool:
        """Return True if a reader has to extend the log."""
        return self._hot.log_until_ms < now_ms + LOG_KEPT_MS // 2

    def extend(self, now_ms: int) -> None:
        self._hot.log_until_ms = now_ms + LOG_KEPT_MS

    def drop_if_unread(self, now_ms: int) -> None:
        if 0 < self._hot.log_until_ms <= now_ms and not self._hot.meta.watchers:
            self._hot.log_until_ms = 0
            self._hot.log = []
            self._spilled.clear()

    def append(self, event: Event) -> None:
        self._hot.log.append(pack_event(event))

    def events(self, after: int, limit: int) -> list[Event]:
        texts = self._spilled.entries(after, limit)
        texts += [text for text in self._hot.log if position_of(text) > after]
        return [unpack_event(text) for text in texts[:limit]]

    def oldest(self) -> int | None:
        position = self._spilled.oldest()
        if position is None and self._hot.log:
            position = position_of(self._hot.log[0])
        return position

    def spill(self) -> None:
        """Move the entries in the hot row to the table, and delete the oldest."""
        if self.is_written:
            self._spilled.add([(position_of(text), text) for text in self._hot.log])
            self._spilled.delete_before(self._hot.meta.position - LOG_KEPT + 1)
        self._hot.log = []
