"""The watches of one stream, and the lines of the gateway's response."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from lockfast.sim.etcd.mvcc import INFINITY, Mvcc, within
from lockfast.sim.etcd.wire import EtcdError, Json, event_json, number, octets

NONE: Final = -1
"""The watch id of responses that belong to no watch."""


class Watch:
    """One range, watched from a revision on."""

    __slots__ = ("filters", "id", "key", "next", "prev_kv", "stop", "synced")

    def __init__(self, watch_id: int, body: Json, next_revision: int, synced: bool) -> None:
        self.id = watch_id
        self.key = octets(body, "key") or b"\x00"
        self.stop = octets(body, "range_end")
        self.filters = frozenset(body.get("filters", ()))
        self.prev_kv = bool(body.get("prev_kv"))
        self.next = next_revision
        """The first revision not yet examined."""
        self.synced = synced
        """It gets events as they are applied; until then, the member sends past events later."""

    def events(self, mvcc: Mvcc, upto: int) -> list[Json]:
        """Return the events up to a revision; each event is returned once."""
        found = [
            event_json(event, prev_kv=self.prev_kv)
            for revision in range(self.next, upto + 1)
            for event in mvcc.changes(revision)
            if within(event.kv.key, self.key, self.stop)
            and ("NODELETE" if event.deleted else "NOPUT") not in self.filters
        ]
        self.next = max(self.next, upto + 1)
        return found


class Watches:
    """All watches of one stream at one member."""

    def __init__(self, mvcc: Mvcc) -> None:
        self._mvcc = mvcc
        self._watches: dict[int, Watch] = {}
        self._next_id = 0

    def ask(self, body: Json, revision: int) -> Iterator[Json]:
        """Answer a client's request, at a member that has applied the log up to a revision."""
        if "create_request" in body:
            yield self._create(body["create_request"], revision)
        elif "cancel_request" in body:
            watch_id = number(body["cancel_request"], "watch_id")
            if self._watches.pop(watch_id, None) is not None:
                yield _line(revision, watch_id, canceled=True)
        elif "progress_request" in body:
            # This promises nothing for watches that have not yet received their past events.
            yield _line(revision, NONE)
        else:
            raise EtcdError(3, f"no watch request: {sorted(body)}")

    def _create(self, body: Json, revision: int) -> Json:
        watch_id = number(body, "watch_id")
        key, stop = octets(body, "key"), octets(body, "range_end")
        why = ""
        if watch_id in self._watches and watch_id:
            why = "mvcc: duplicate watch ID provided on the WatchStream"
        elif b"" < stop != INFINITY and key >= stop:
            why = "mvcc: watcher range is empty"
        if why:
            return _line(revision, NONE, created=True, canceled=True, cancel_reason=why)
        if not watch_id:
            while self._next_id in self._watches:
                self._next_id += 1
            watch_id = self._next_id
            self._next_id += 1
        start = number(body, "start_revision")
        synced = not start or start > revision
        self._watches[watch_id] = Watch(watch_id, body, start or revision + 1, synced)
        return _line(revision, watch_id, created=True)

    def has_unsynced(self) -> bool:
        return any(not watch.synced for watch in self._watches.values())

    def catch_up(self, revision: int) -> Iterator[Json]:
        """Send past events to watches that started at an earlier revision."""
        for watch in list(self._watches.values()):
            if watch.synced:
                continue
            if watch.next < self._mvcc.compacted:
                del self._watches[watch.id]
                oldest = str(self._mvcc.compacted)
                yield _line(0, watch.id, canceled=True, compact_revision=oldest)
                continue
            watch.synced = True
            events = watch.events(self._mvcc, revision)
            if events:
                yield _line(revision, watch.id, events=events)

    def tell(self, revision: int) -> Iterator[Json]:
        """Send the events of the next revision to the watches that are up to date."""
        for watch in self._watches.values():
            if watch.synced and watch.next <= revision:
                events = watch.events(self._mvcc, revision)
                if events:
                    yield _line(revision, watch.id, events=events)


def _line(revision: int, watch_id: int, **about: object) -> Json:
    result: Json = {"header": {"revision": str(revision)} if revision else {}}
    if watch_id:
        result["watch_id"] = str(watch_id)
    result.update(about)
    return {"result": result}
