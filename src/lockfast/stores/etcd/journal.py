"""The event log, read from etcd's history of the keys that record the fate of claims.

Each transaction overwrites the events of the previous one (key `l`) without comparing them. A lease
that expires writes no events, but its deletions are in the history too, and the reader derives
events from them. The position of an event is its revision times POSITIONS, plus its index within
that revision, so positions increase but have gaps. Events are written only while there are readers.
"""

from __future__ import annotations

from typing import Any, Final

from lockfast.core.commands import HOLDING, Event, Events, EventsReply
from lockfast.core.reasons import EXPIRED
from lockfast.core.rows import LOG_KEPT_MS
from lockfast.errors import OutcomeUnknownError
from lockfast.stores.derived.stored import decode, encode
from lockfast.stores.etcd import layout as k
from lockfast.stores.etcd.errors import CompactedError, error_of
from lockfast.stores.etcd.execution import Execution
from lockfast.stores.etcd.layout import Base
from lockfast.stores.etcd.requests import Kv
from lockfast.stores.etcd.transport import Json

LOG_KEPT: Final = 1000
"""How many revisions back the log can be read."""
POSITIONS: Final = 1 << 16
"""Positions per revision: one expiring lease may end this many claims."""


async def begin(execution: Execution) -> Base:
    """Enable the log if it is not enabled; return the base."""
    keys = execution.keys
    while True:
        wall_us = execution.look().wall_us
        now_ms = wall_us // 1000
        (stored,), revision = await execution.read_keys(k.EPOCH_KEY)
        base = k.base_from(keys.label, stored)
        known = base or Base(max(0, wall_us - k.STRIDE * revision))
        if base is not None and base.log_until_ms > now_ms + LOG_KEPT_MS // 2:
            return base
        extended = known._replace(log_until_ms=now_ms + LOG_KEPT_MS)
        if known.log_until_ms <= now_ms:
            before = revision if known.log_until_ms else 0
            extended = extended._replace(log_since=revision, log_before=before)
        write = keys.put(k.EPOCH_KEY, encode(list(extended)))
        try:
            await execution.commit([write], [keys.same(k.EPOCH_KEY, stored)])
        except OutcomeUnknownError:
            continue  # the next read shows whether it was executed


async def read(execution: Execution, command: Events) -> EventsReply:
    base = await begin(execution)
    mark = execution.keys.put(k.MARK_KEY, "")
    last = (await execution.commit([mark])).revision
    if command.after is None:
        return EventsReply((), last * POSITIONS, last * POSITIONS + 1, False)
    start = command.after // POSITIONS
    if start > last:  # a position of a log that the cluster has lost
        return EventsReply((), last * POSITIONS, last * POSITIONS + 1, False)
    # Nothing was logged before `log_since`, unless an earlier period of logging ended at
    # `log_before`.
    is_cut = start < base.log_before
    start = max(start, base.log_since)
    if start < last - LOG_KEPT:
        is_cut, start = True, last - LOG_KEPT
    while True:
        follower = _Follower(execution, last)
        try:
            await follower.follow(start)
        except CompactedError as error:
            is_cut, start = True, max(start + 1, error.revision)
            continue
        break
    events = [event for event in follower.events if event.position > command.after]
    end = events[-1].position if events else max(command.after, start * POSITIONS * is_cut)
    first = events[0].position if events else end + 1
    found = tuple(events[: command.limit])
    return EventsReply(
        found, end, first if is_cut else min(first, command.after + 1), len(events) > len(found)
    )


class _Follower:
    """Derive events from the history between two revisions."""

    def __init__(self, execution: Execution, last: int) -> None:
        self.events: list[Event] = []
        self._execution = execution
        self._keys = execution.keys
        self._last = last
        self._wall_ms = execution.instant.wall_us // 1000
        self._changes: list[tuple[int, list[tuple[Kv, Kv | None]]]] = []
        """The changes of each revision."""
        self._tombs: dict[str, Kv] = {}
        self._error: Exception | None = None

    async def follow(self, start: int) -> None:
        execution, gateway = self._execution, self._execution.gateway
        request = {
            "key": self._keys.coded(k.HISTORY[0]),
            "range_end": self._keys.coded(k.HISTORY[1]),
            "start_revision": str(start),
            "prev_kv": True,
        }
        token = await gateway.token(execution.until_ms)
        left_ms = max(1, execution.until_ms - execution.network.now_ms())
        await gateway.transport.follow(request, self._take, left_ms, token)
        if self._error is not None:
            raise self._error
        try:
            await self._read_tombs()
            for revision, group in self._changes:
                self._revision(revision, group)
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            raise self._keys.malformed(error) from None

    async def _read_tombs(self) -> None:
        """Find out why sessions ended: in the history or, if that was written before our first
        revision, in the store."""
        ended: set[str] = set()
        for _, group in self._changes:
            is_logged = any(_is_log(kv) for kv, _ in group)
            for kv, before in group:
                if kv.key[0] == "k" and before is None:
                    self._tombs[kv.key.split(k.SEP)[1]] = kv
                elif kv.key[0] == "n" and before is not None and not is_logged:
                    ended.add(k.parse_place(kv.key).session)
        names = sorted(map(k.ended_key, ended - self._tombs.keys() - {""}))
        found = (await self._execution.read_keys(*names))[0] if names else []
        self._tombs |= {kv.key.split(k.SEP)[1]: kv for kv in found if kv is not None}

    def _take(self, message: Json) -> bool:
        """Process one message; return True once everything up to the mark has arrived."""
        try:
            return self._read(message)
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            self._error = self._keys.malformed(error)
            return True

    def _read(self, message: Json) -> bool:
        self._error = error_of(self._keys.label, message)
        if self._error is not None:
            return True
        result = message["result"]
        if result.get("canceled"):
            self._error = CompactedError(int(result.get("compact_revision", 0)))
            return True
        changes: dict[int, list[tuple[Kv, Kv | None]]] = {}
        for event in result.get("events", ()):
            kv = self._keys.kv(event["kv"])
            before = None
            if event.get("type") == "DELETE":
                before = self._keys.kv(event.get("prev_kv", event["kv"]))
            changes.setdefault(kv.mod, []).append((kv, before))
        for revision, group in changes.items():
            if revision <= self._last:
                self._changes.append((revision, group))
            if revision >= self._last:
                return True
        return False

    def _revision(self, revision: int, group: list[tuple[Kv, Kv | None]]) -> None:
        logged = sorted((kv for kv, _ in group if _is_log(kv)), key=lambda kv: kv.key)
        values: list[Any] = [packed for kv in logged for packed in decode(kv.value)]
        made = [k.event_from(packed, revision, 0) for packed in values]
        if not logged:
            made = self._of_ended_lease(revision, group)
        base = revision * POSITIONS
        for at, event in enumerate(made):
            self.events.append(event._replace(position=base + at))

    def _of_ended_lease(self, revision: int, group: list[tuple[Kv, Kv | None]]) -> list[Event]:
        """Return the events of the claims whose lease ended."""
        ended = {kv.key.split(k.SEP)[1] for kv, before in group if before and kv.key[0] == "o"}
        made: list[Event] = []
        for kv, before in group:
            if before is None or kv.key[0] != "n":
                continue
            key = k.parse_place(kv.key)
            stored = self._tombs.get(key.session)
            tomb = None
            if stored is not None and stored.mod <= revision:
                tomb = k.read(k.Tombstone, stored)
            if key.line not in "hvw" or (tomb is None and key.session not in ended):
                continue
            claim, owner = k.claim_from(key, before)
            what, detail = (tomb.what, tomb.reason) if tomb else ("expired", EXPIRED)
            if claim.state != HOLDING and what in ("released", "expired"):
                what = "gave_up"
            for place in claim.places:
                if (place.kind, place.name) == (key.kind, key.name):
                    made.append(
                        Event(
                            0, self._wall_ms, what, place.kind, place.name, place.mode,
                            claim.session, claim.n, owner.owner, claim.token, detail,
                        )
                    )  # fmt: skip
        return made


def _is_log(kv: Kv) -> bool:
    return kv.key[:2] == "l\x1f"
