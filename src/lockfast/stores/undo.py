"""Rows in memory that can be restored when a step is interrupted.

Ctrl-C may strike between any two lines, even within a step. A store with transactions rolls back;
here, each row is copied when a step first accesses it.
"""

from __future__ import annotations

from typing import Any

from lockfast.core.memory_rows import MemoryRows
from lockfast.core.rows import META_KEY, Row, copied


class UndoableRows(MemoryRows):
    """MemoryRows whose changes since the last `keep` can be undone."""

    __slots__ = ("_before",)

    def __init__(self) -> None:
        super().__init__()
        self._before: dict[str, Any] = {}

    def keep(self) -> None:
        """Make the changes of the step permanent."""
        self._before = {}

    def undo(self) -> None:
        """Restore everything that has changed since `keep`."""
        for key, row in self._before.items():
            if row is None:
                self._rows.pop(key, None)
            else:
                self._rows[key] = row
        self._keys = sorted(self._rows)
        meta = self._rows.get(META_KEY)
        while self._log and (meta is None or self._log[-1].position > meta.position):
            self._log.pop()
        self.keep()

    def get(self, key: str) -> Any:
        row = super().get(key)
        if key not in self._before:
            self._before[key] = copied(row)
        return row

    def put(self, key: str, row: Row) -> None:
        self.get(key)
        super().put(key, row)

    def delete(self, key: str) -> None:
        self.get(key)
        super().delete(key)

    def scan(
        self, start: str, stop: str, limit: int, reverse: bool = False
    ) -> list[tuple[str, Any]]:
        found = super().scan(start, stop, limit, reverse)
        for key, row in found:
            if key not in self._before:
                self._before[key] = copied(row)
        return found
