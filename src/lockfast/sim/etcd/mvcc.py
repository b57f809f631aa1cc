"""Keys and their revisions, as etcd keeps them.

Every transaction that changes something creates a revision. Old revisions stay readable, and the
log of changes stays watchable, until they are compacted.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator
from typing import Final, NamedTuple

INFINITY: Final = b"\x00"
"""As the end of a range: every key from its start on."""


class Kv(NamedTuple):
    """One key as a transaction left it."""

    key: bytes
    create: int
    mod: int
    version: int
    """How often it was written since its creation; 0: this transaction deleted it."""
    value: bytes = b""
    lease: int = 0


class Event(NamedTuple):
    """One change, for watches."""

    kv: Kv
    former: Kv | None

    @property
    def deleted(self) -> bool:
        return not self.kv.version


class Mvcc:
    """All keys at all revisions since the last compaction."""

    def __init__(self) -> None:
        self.revision = 1
        """The revision of the last transaction that changed something."""
        self.compacted = -1
        """Revisions older than this have been compacted."""
        self.live: dict[bytes, Kv] = {}
        self._live_order: list[bytes] = []
        self._versions: dict[bytes, list[Kv]] = {}
        """The versions of every key, oldest first."""
        self._order: list[bytes] = []
        """All keys of `_versions`, in order."""
        self._log: list[tuple[Event, ...]] = []
        """The changes of revisions 2, 3, …; compacted ones are empty."""
        self._changes: list[Event] = []
        """The changes of the current transaction."""

    # ── reading ──────────────────────────────────────────────────────────────────────

    def range(self, start: bytes, stop: bytes, revision: int = 0) -> list[Kv]:
        """Return one key (empty `stop`) or a range of keys, as of a revision; 0: now."""
        if revision and revision < self._writing():
            return list(self._range_at(start, stop, revision))
        if not stop:
            found = self.live.get(start)
            return [found] if found is not None else []
        order, live = self._live_order, self.live
        return [live[key] for key in order[slice(*_span(order, start, stop))]]

    def part(
        self, start: bytes, stop: bytes, revision: int, limit: int, *, tail: bool
    ) -> tuple[list[Kv], int]:
        """Return the first keys of a range (or the last), and its size; limit 0: all keys."""
        if not stop or not limit or (revision and revision < self._writing()):
            found = self.range(start, stop, revision)
            return found, len(found)
        order, live = self._live_order, self.live
        first, end = _span(order, start, stop)
        count = end - first
        if tail:
            first = max(first, end - limit)
        else:
            end = min(end, first + limit)
        return [live[key] for key in order[first:end]], count

    def _range_at(self, start: bytes, stop: bytes, revision: int) -> Iterator[Kv]:
        order = self._order
        keys = order[slice(*_span(order, start, stop))] if stop else [start]
        for key in keys:
            for kv in reversed(self._versions.get(key, ())):
                if kv.mod <= revision:
                    if kv.version:
                        yield kv
                    break

    def visited(self, start: bytes, stop: bytes) -> int:
        """Return how many keys etcd visits to read a range: deleted ones too, until compacted."""
        first, end = _span(self._order, start, stop)
        return end - first

    def _writing(self) -> int:
        """Return the revision that a read inside the current transaction sees."""
        return self.revision + 1 if self._changes else self.revision

    def visible(self) -> int:
        """Return the revision that a read sees now, inside or outside a transaction."""
        return self._writing()

    def changes(self, revision: int) -> tuple[Event, ...]:
        """Return the changes of the transaction with this revision; revision 1 has none."""
        return self._log[revision - 2] if revision >= 2 else ()

    # ── writing: any number of puts and deletes, then `end` ──────────────────────────

    def put(self, key: bytes, value: bytes, lease: int) -> Kv | None:
        """Write one key and return its former version."""
        former = self.live.get(key)
        revision = self.revision + 1
        if former is None:
            kv = Kv(key, revision, revision, 1, value, lease)
            insort(self._live_order, key)
        else:
            kv = Kv(key, former.create, revision, former.version + 1, value, lease)
        self.live[key] = kv
        self._note(kv, former)
        return former

    def delete(self, start: bytes, stop: bytes) -> list[Kv]:
        """Delete one key or a range and return what was deleted."""
        found = self.range(start, stop)
        revision = self.revision + 1
        for kv in found:
            del self.live[kv.key]
            del self._live_order[bisect_left(self._live_order, kv.key)]
            self._note(Kv(kv.key, 0, revision, 0), kv)
        return found

    def _note(self, kv: Kv, former: Kv | None) -> None:
        versions = self._versions.get(kv.key)
        if versions is None:
            insort(self._order, kv.key)
            self._versions[kv.key] = [kv]
        else:
            versions.append(kv)
        self._changes.append(Event(kv, former))

    def end(self) -> None:
        """End the transaction; if it changed something, that becomes a new revision."""
        if self._changes:
            self.revision += 1
            self._log.append(tuple(self._changes))
            self._changes = []

    def compact(self, revision: int) -> None:
        """Discard what was overwritten or deleted up to this revision."""
        for old in range(max(2, self.compacted), revision):
            self._log[old - 2] = ()
        if revision >= 2:
            # If this very revision deleted a key, its deletion is discarded as well.
            kept = tuple(event for event in self._log[revision - 2] if not event.deleted)
            self._log[revision - 2] = kept
        self.compacted = revision
        for key, versions in list(self._versions.items()):
            while len(versions) > 1 and versions[1].mod <= revision:
                versions.pop(0)
            if not versions[0].version and versions[0].mod <= revision:
                versions.pop(0)
            if not versions:
                del self._versions[key]
                del self._order[bisect_left(self._order, key)]


def _span(order: list[bytes], start: bytes, stop: bytes) -> tuple[int, int]:
    first = bisect_left(order, start)
    return first, len(order) if stop == INFINITY else max(first, bisect_left(order, stop))


def within(key: bytes, start: bytes, stop: bytes) -> bool:
    """Return whether a range, or a single key without `stop`, contains a key."""
    if not stop:
        return key == start
    return start <= key and (stop == INFINITY or key < stop)
