"""Rows in a dict with sorted keys, for the memory store, tests and the simulator."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque
from itertools import islice
from typing import Any

from lockfast.core.commands import Event
from lockfast.core.rows import LOG_KEPT, Row, copied


class MemoryRows:
    """`Rows` in the memory of one process."""

    __slots__ = ("_keys", "_log", "_rows")

    logs = True

    def __init__(self) -> None:
        self._rows: dict[str, Any] = {}
        self._keys: list[str] = []
        self._log: deque[Event] = deque(maxlen=LOG_KEPT)

    def get(self, key: str) -> Any:
        return self._rows.get(key)

    def put(self, key: str, row: Row) -> None:
        if key not in self._rows:
            insort(self._keys, key)
        self._rows[key] = row

    def add(self, key: str, row: Row) -> None:
        self.put(key, row)

    def delete(self, key: str) -> None:
        if self._rows.pop(key, None) is not None:
            del self._keys[bisect_left(self._keys, key)]

    def scan(
        self, start: str, stop: str, limit: int, reverse: bool = False
    ) -> list[tuple[str, Any]]:
        keys, rows = self._keys, self._rows
        low = bisect_left(keys, start)
        if limit == 1 and not reverse:
            if low < len(keys) and keys[low] < stop:
                return [(keys[low], rows[keys[low]])]
            return []
        high = bisect_left(keys, stop, low)
        if high == low:
            return []
        if reverse:
            found = keys[max(low, high - limit) : high][::-1]
        else:
            found = keys[low : min(high, low + limit)]
        return [(key, rows[key]) for key in found]

    def append(self, event: Event) -> None:
        self._log.append(event)

    def events(self, after: int, limit: int) -> list[Event]:
        if not self._log:
            return []
        start = max(0, after + 1 - self._log[0].position)
        return list(islice(self._log, start, start + limit))

    def oldest(self) -> int | None:
        return self._log[0].position if self._log else None

    def copy(self) -> MemoryRows:
        """Return an independent copy."""
        other = MemoryRows()
        other._rows = {key: copied(row) for key, row in self._rows.items()}
        other._keys = list(self._keys)
        other._log = self._log.copy()
        return other

    def __len__(self) -> int:
        return len(self._keys)
