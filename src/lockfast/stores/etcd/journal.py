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
        write = keys.put(k.EPOCH_KEY, k.encode(list(extended)))
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
        self._tombs: dict[str, k.Tombstone] = {}
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
                self._revision(revision, group)
            if revision >= self._last:
                return True
        return False

    def _revision(self, revision: int, group: list[tuple[Kv, Kv | None]]) -> None:
        for kv, before in group:
            if kv.key[0] == "k" and before is None:
                session = kv.key.split(k.SEP)[1]
                self._tombs[session] = k.typed(k.Tombstone, k.decode(kv.value))
        logged = sorted((kv for kv, _ in group if kv.key[:2] == "l\x1f"), key=lambda kv: kv.key)
        values: list[Any] = [packed for kv in logged for packed in k.decode(kv.value)]
        made = [k.event_from(packed, revision, 0) for packed in values]
        if not logged:
            made = self._of_ended_lease(group)
        base = revision * POSITIONS
        for at, event in enumerate(made):
            self.events.append(event._replace(position=base + at))

    def _of_ended_lease(self, group: list[tuple[Kv, Kv | None]]) -> list[Event]:
        """Return the events of the claims whose lease ended."""
        ended = {kv.key.split(k.SEP)[1] for kv, before in group if before and kv.key[0] == "o"}
        made: list[Event] = []
        for kv, before in group:
            if before is None or kv.key[0] != "n":
                continue
            key = k.parse_place(kv.key)
            tomb = self._tombs.get(key.session)
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
