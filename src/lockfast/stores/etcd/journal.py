"""The log: etcd's own history of one key, numbered by whoever reads it.

Each transaction writes its events over those of the last one, without comparing them, so
nobody waits for another because of the log. A reader follows the key through its revisions
and counts. How far the log has been counted is written down from time to time, so that the
next reader need not begin at the beginning.

It is written only while somebody reads it: every read says that it is to be written for a
while. Where it was not written for some time there is a gap.
"""

from __future__ import annotations

import json
import time
from typing import Final, NamedTuple

from lockfast.core.commands import Event, Events, EventsReply
from lockfast.core.rows import LOG_KEPT_MS
from lockfast.errors import OutcomeUnknownError, StoreUnavailableError
from lockfast.stores.etcd.errors import CompactedError
from lockfast.stores.etcd.gateway import Gateway
from lockfast.stores.etcd.requests import WATCH, Keys, Kv, revision_of
from lockfast.stores.etcd.rows import (
    EPOCH_KEY,
    LOG_KEY,
    NUMBERED_KEY,
    STRIDE,
    Base,
    decode,
    encode,
    event_from,
)
from lockfast.stores.etcd.watching import Lines, requests

LOG_KEPT: Final = 1000
"""As many events can be read; etcd keeps more, but nobody wants to count them all."""
MARKS_APART: Final = LOG_KEPT // 4
MARKS_MAX: Final = 6
STEPS_BACK_MAX: Final = 8
"""As many entries are read one by one; etcd starts a watch of the past only now and then."""
REVISIONS_MAX: Final = 50_000
"""A log that nobody has read for longer than this is not counted: there is a gap."""


class Mark(NamedTuple):
    """Up to this revision there are so many events, in so many entries (-1: not known)."""

    position: int
    revision: int
    entries: int
    is_gap: bool = False
    """What happened before was not written down, and is not counted."""


class Counted(NamedTuple):
    """A part of the log, up to a mark."""

    mark: Mark
    events: tuple[Event, ...]


BEGINNING: Final = Mark(0, 0, 0)


class Journal:
    """The log as one store has read it. Replaced as a whole, so any thread may read."""

    def __init__(self, keys: Keys) -> None:
        self._keys = keys
        self._counted: Counted | None = None

    async def read(self, gateway: Gateway, command: Events, until_s: float) -> EventsReply:
        await self.begin(gateway, until_s)
        counted = await self._up_to_now(gateway, command.after, until_s)
        self._counted = counted
        end, events = counted.mark.position, counted.events
        oldest = events[0].position if events else end + 1
        if command.after is None:
            return EventsReply((), end, oldest, False)
        found = [event for event in events if event.position > command.after]
        return EventsReply(tuple(found[: command.limit]), end, oldest, len(found) > command.limit)

    async def begin(self, gateway: Gateway, until_s: float) -> None:
        """Have the log written from now on, if it is not."""
        keys = self._keys
        while True:
            wall_us = time.time_ns() // 1000
            now_ms = wall_us // 1000
            reads = [keys.range(EPOCH_KEY), keys.range(NUMBERED_KEY)]
            answer = await gateway.txn({"success": reads}, until_s, repeatable=True)
            stored, marks = (keys.found(response).kvs for response in answer["responses"])
            fresh = Base(max(0, wall_us - STRIDE * revision_of(answer)))
            base = Base(*decode(stored[0].value)) if stored else fresh
            if base.log_until_ms > now_ms + LOG_KEPT_MS // 2:
                return
            base_mod, marks_mod = (found[0].mod if found else 0 for found in (stored, marks))
            compares = [keys.unchanged(EPOCH_KEY, base_mod)]
            writes = [keys.put(EPOCH_KEY, encode(base._replace(log_until_ms=now_ms + LOG_KEPT_MS)))]
            if stored and base.log_until_ms <= now_ms:
                last = (await self._up_to_now(gateway, None, until_s)).mark
                gap = _skip(last, revision_of(answer))._replace(entries=last.entries, is_gap=True)
                compares.append(keys.unchanged(NUMBERED_KEY, marks_mod))
                writes.append(keys.put(NUMBERED_KEY, encode([gap])))
            body = {"compare": compares, "success": writes}
            try:
                await gateway.txn(body, until_s)
            except OutcomeUnknownError:
                continue  # it shows whether it was done

    async def _up_to_now(self, gateway: Gateway, after: int | None, until_s: float) -> Counted:
        keys = self._keys
        reads = [keys.range(LOG_KEY), keys.range(NUMBERED_KEY)]
        answer = await gateway.txn({"success": reads}, until_s, repeatable=True)
        log, stored = (keys.found(response).kvs for response in answer["responses"])
        marks = [Mark(*mark) for mark in decode(stored[0].value)] if stored else []
        if not log:
            return Counted(marks[-1] if marks else BEGINNING, ())
        begin = self._counted
        if begin is not None and any(m.is_gap and m.revision > begin.mark.revision for m in marks):
            begin = None
        if begin is None or not _reaches(begin, after, marks):
            begin = Counted(_start(marks, after), ())
        if log[0].mod - begin.mark.revision > REVISIONS_MAX:
            begin = Counted(_skip(begin.mark, log[0].mod - REVISIONS_MAX), ())
        counted = await self._count(gateway, begin, log[0], marks, until_s)
        if not marks or counted.mark.position - marks[-1].position > MARKS_APART:
            await self._write_down(gateway, counted.mark, marks, stored, until_s)
        return counted

    async def _count(
        self, gateway: Gateway, begin: Counted, last: Kv, marks: list[Mark], until_s: float
    ) -> Counted:
        """Go through all entries behind `begin`, up to the last."""
        while begin.mark.revision < last.mod:
            follower = _Follower(self._keys, gateway.cluster.label, begin, last)
            few = begin.mark.entries >= 0
            few = few and last.version - begin.mark.entries <= STEPS_BACK_MAX
            try:
                if few:
                    await self._step_back(gateway, follower, begin.mark, last, until_s)
                else:
                    asked = requests(self._keys, [(LOG_KEY, begin.mark.revision + 1)])
                    await gateway.stream(WATCH, json.loads(asked), until_s, follower.take)
            except CompactedError as error:
                oldest = error.revision or begin.mark.revision + 1
                later = [mark for mark in marks if mark.revision >= oldest]
                begin = Counted(later[0] if later else _skip(begin.mark, oldest - 1), ())
                continue
            except OutcomeUnknownError as error:
                raise StoreUnavailableError(error.store, error.what, error.advice) from error
            return follower.counted()
        return begin

    async def _step_back(
        self, gateway: Gateway, follower: _Follower, begin: Mark, last: Kv, until_s: float
    ) -> None:
        entries = [last]
        while entries[-1].version > begin.entries + 1:
            read = self._keys.range(LOG_KEY, revision=entries[-1].mod - 1)
            answer = await gateway.txn({"success": [read]}, until_s, repeatable=True)
            entries += self._keys.found(answer["responses"][0]).kvs
        for entry in reversed(entries):
            follower.count(entry)

    async def _write_down(
        self, gateway: Gateway, mark: Mark, marks: list[Mark], stored: list[Kv], until_s: float
    ) -> None:
        """Note how far we have counted; if another was quicker, its note is as good."""
        keys = self._keys
        try:
            await gateway.txn(
                {
                    "compare": [keys.unchanged(NUMBERED_KEY, stored[0].mod if stored else 0)],
                    "success": [keys.put(NUMBERED_KEY, encode([*marks, mark][-MARKS_MAX:]))],
                },
                until_s,
            )
        except OutcomeUnknownError:
            pass  # the next reader writes it


class _Follower:
    """Counts the events of entries up to the last."""

    def __init__(self, keys: Keys, label: str, begin: Counted, last: Kv) -> None:
        self._lines = Lines(keys, label)
        self._position = begin.mark.position
        self._events = list(begin.events)
        self._last = last

    def take(self, piece: bytes) -> bool:
        for change in self._lines.feed(piece):
            self.count(change.kv)
            if change.kv.mod >= self._last.mod:
                return True
        return False

    def count(self, entry: Kv) -> None:
        if entry.mod > self._last.mod:
            return
        for packed in decode(entry.value):
            self._position += 1
            self._events.append(event_from(packed, entry.mod, self._position))

    def counted(self) -> Counted:
        mark = Mark(self._position, self._last.mod, self._last.version)
        return Counted(mark, tuple(self._events[-LOG_KEPT:]))


def _start(marks: list[Mark], after: int | None) -> Mark:
    """Where to begin counting, to have everything behind a position."""
    if after is None and marks:
        return marks[-1]
    before = [mark for mark in marks if after is not None and mark.position <= after]
    if before:
        return before[-1]
    has_first = len(marks) == MARKS_MAX or (marks and marks[0].is_gap)
    return marks[0] if has_first else BEGINNING


def _reaches(counted: Counted, after: int | None, marks: list[Mark]) -> bool:
    """Whether what was counted has all that can be had behind a position."""
    first = counted.events[0].position if counted.events else counted.mark.position + 1
    if after is None or first <= after + 1 or len(counted.events) >= LOG_KEPT:
        return True
    return _start(marks, after).position >= first - 1


def _skip(mark: Mark, revision: int) -> Mark:
    """Behind what can no longer be read; how much that was, nobody knows."""
    return Mark(mark.position + max(1, revision - mark.revision), revision, -1)
