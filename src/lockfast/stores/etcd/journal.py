"""The event log, read from etcd's history of the keys that record the fate of claims.

Each transaction overwrites the events of the previous one (key `l`) without comparing them. A lease
that expires writes no events, but its deletions are in the history too, and the reader derives
events from them. The position of an event is its revision times POSITIONS, plus its index within
that revision, so positions increase but have gaps. Events are written only while there are readers.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Any, Final

from lockfast.core.commands import HOLDING, Event, Events, EventsReply
from lockfast.core.reasons import EXPIRED
from lockfast.core.rows import LOG_KEPT_MS
from lockfast.errors import OutcomeUnknownError
from lockfast.stores.derived.stored import decode, encode
from lockfast.stores.etcd import layout as k
from lockfast.stores.etcd.errors import CompactedError
from lockfast.stores.etcd.execution import Execution
from lockfast.stores.etcd.layout import Base
from lockfast.stores.etcd.requests import Change, Kv, changes_in
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
        with suppress(OutcomeUnknownError):  # the next read shows whether it was executed
            await execution.commit([write], [keys.same(k.EPOCH_KEY, stored)])


async def read(execution: Execution, command: Events) -> EventsReply:
    base = await begin(execution)
    mark = execution.keys.put(k.MARK_KEY, "")
    last = (await execution.commit([mark])).revision
    # A start behind the end is a position of a log that the cluster has lost.
    start = last + 1 if command.after is None else command.after // POSITIONS
    if command.after is None or start > last:
        return EventsReply((), last * POSITIONS, last * POSITIONS + 1, False)
    # Nothing was logged before `log_since`, unless an earlier period of logging ended at
    # `log_before`.
    is_cut = start < base.log_before
    start = max(start, base.log_since)
    if start < last - LOG_KEPT:
        is_cut, start = True, last - LOG_KEPT
    while True:
        try:
            history = await _history(execution, start, last)
            break
        except CompactedError as error:
            is_cut, start = True, max(start + 1, error.revision)
    try:
        events = await _events(execution, history)
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise execution.keys.malformed(error) from None
    events = [event for event in events if event.position > command.after]
    end = events[-1].position if events else max(command.after, start * POSITIONS * is_cut)
    first = events[0].position if events else end + 1
    found = tuple(events[: command.limit])
    return EventsReply(
        found, end, first if is_cut else min(first, command.after + 1), len(events) > len(found)
    )


async def _history(execution: Execution, start: int, last: int) -> dict[int, list[Change]]:
    """Return the changes of each revision from `start` to `last`, in order."""
    keys = execution.keys
    request = {
        "key": keys.coded(k.HISTORY[0]),
        "range_end": keys.coded(k.HISTORY[1]),
        "start_revision": str(start),
        "prev_kv": True,
    }
    history: dict[int, list[Change]] = {}

    def take(message: Json) -> bool:
        """Process one message; return True once everything up to the mark has arrived."""
        for change in changes_in(keys, message)[1]:
            if change.kv.mod <= last:
                history.setdefault(change.kv.mod, []).append(change)
        return last in history

    await execution.gateway.follow(request, take, execution.until_ms)
    return history


async def _events(execution: Execution, history: dict[int, list[Change]]) -> list[Event]:
    tombs = await _tombs(execution, history)
    wall_ms = execution.instant.wall_us // 1000
    events: list[Event] = []
    for revision, changes in history.items():
        logged = sorted((kv for kv, _ in changes if _is_log(kv)), key=lambda kv: kv.key)
        values: list[Any] = [packed for kv in logged for packed in decode(kv.value)]
        made = [k.event_from(packed, revision, 0) for packed in values]
        if not logged:
            made = list(_of_ended_leases(revision, changes, tombs, wall_ms))
        base = revision * POSITIONS
        events += [event._replace(position=base + at) for at, event in enumerate(made)]
    return events


async def _tombs(execution: Execution, history: dict[int, list[Change]]) -> dict[str, Kv]:
    """Find out why sessions ended: in the history or, if that was written before our first
    revision, in the store."""
    tombs: dict[str, Kv] = {}
    ended: set[str] = set()
    for changes in history.values():
        is_logged = any(_is_log(kv) for kv, _ in changes)
        for kv, before in changes:
            if kv.key[0] == "k" and before is None:
                tombs[kv.key] = kv
            elif kv.key[0] == "n" and before is not None and not is_logged:
                ended.add(k.ended_key(k.parse_place(kv.key).session))
    names = sorted(ended - tombs.keys() - {k.ended_key("")})
    found = (await execution.read_keys(*names))[0] if names else []
    return tombs | {kv.key: kv for kv in found if kv is not None}


def _of_ended_leases(
    revision: int, changes: list[Change], tombs: dict[str, Kv], wall_ms: int
) -> Iterator[Event]:
    """Yield the events of the claims whose lease ended."""
    ended = {kv.key.split(k.SEP)[1] for kv, before in changes if before and kv.key[0] == "o"}
    for kv, before in changes:
        if before is None or kv.key[0] != "n":
            continue
        key = k.parse_place(kv.key)
        stored = tombs.get(k.ended_key(key.session))
        tomb = k.read(k.Tombstone, stored) if stored and stored.mod <= revision else None
        if not key.is_claim or (tomb is None and key.session not in ended):
            continue
        claim, owner = k.claim_from(key, before)
        what, detail = (tomb.what, tomb.reason) if tomb else ("expired", EXPIRED)
        if claim.state != HOLDING and what in ("released", "expired"):
            what = "gave_up"
        for place in claim.places:
            if (place.kind, place.name) == (key.kind, key.name):
                yield Event(
                    0, wall_ms, what, place.kind, place.name, place.mode, claim.session, claim.n,
                    owner.owner, claim.token, detail,
                )  # fmt: skip


def _is_log(kv: Kv) -> bool:
    return kv.key[:2] == "l\x1f"
