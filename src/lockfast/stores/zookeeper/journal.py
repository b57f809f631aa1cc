"""Read the log of events.

Events are logged only while the log has a reader: `Base.log_until_ms` says until when, and every
write that has events checks it. A reader extends it. After a time without readers it begins another
log, so that nobody takes what is missing for a time in which nothing happened.

When a client dies, its nodes vanish without an event. The next write at the resource logs that its
claim has ended; when a session has vanished, readers search for such resources.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from lockfast.core.commands import Done, Ended, Event, Events, EventsReply, Place, Reply, Watch
from lockfast.core.rows import LOG_KEPT_MS
from lockfast.errors import OutcomeUnknownError
from lockfast.stores.derived.steps import Settle
from lockfast.stores.zookeeper import entries as e
from lockfast.stores.zookeeper import layout as k
from lockfast.stores.zookeeper.context import Requests, read_base, read_session
from lockfast.stores.zookeeper.layout import Base
from lockfast.stores.zookeeper.loading import Loader
from lockfast.stores.zookeeper.owned import OwnSession
from lockfast.stores.zookeeper.steps import settle
from lockfast.stores.zookeeper.transport import (
    Children,
    Create,
    Get,
    Multi,
    Set,
    Sync,
)

ENTRIES_MAX: Final = 1 << 30
"""Another log is begun before the server runs out of numbers for entries."""
FOLLOWED: Final = 8
"""Entries that a reader asks for at first when it reads on."""
SEARCH_EVERY_MS: Final = 1000


async def begin(requests: Requests) -> tuple[Base, int]:
    """Let events be logged, now and for some time; return the base and its version."""
    context = requests.context
    while True:
        await read_base(requests)
        assert context.base is not None
        base, version = context.base
        now_ms = requests.context.instant().now_ms
        if base.log_until_ms > now_ms + LOG_KEPT_MS // 2:
            return base, version
        extended = base._replace(log_until_ms=now_ms + LOG_KEPT_MS)
        await _switch(requests, extended, version, is_new=base.log_until_ms <= now_ms)


async def _switch(requests: Requests, base: Base, version: int, *, is_new: bool) -> None:
    """Replace the base if it still has this version, and begin another log if `is_new`."""
    paths = requests.context.paths
    base = base._replace(log_number=base.log_number + is_new)
    creates = [Create(paths.log(base.log_number))] if is_new else []
    setting = Set(paths.base, k.data_of(list(base)), version)
    try:
        (answer,) = await requests.call(Multi((*creates, setting)))
    except OutcomeUnknownError:
        return  # the next read of the base shows whether it was executed
    if is_new and not answer.error:
        (found,) = await requests.call(Children(paths.logs))
        for number in found.children:
            if number.isdigit() and int(number) < base.log_number:
                await e.remove(requests, int(number), kept=0)


async def watch(requests: Requests, own: OwnSession, command: Watch) -> Reply:
    """Turn a session's notifications about logged events on or off."""
    row = await read_session(requests, own.id)
    if row is None or row.ended:
        own.abandon(row)
        return Ended(own.ended, own.by)
    own.hears_log = command.on
    if command.on:
        base, _ = await begin(requests)
        own.hear(requests.context.paths.log(base.log_number))  # so that its listener watches it
    return Done()


async def read(requests: Requests, command: Events) -> EventsReply:
    base, version = await begin(requests)
    await _search(requests)
    log, after = base.log_number, command.after
    if after is not None and after >= e.position(log, 0, 0):
        followed = await _follow(requests, log, after, command.limit)
        if followed is not None:
            return followed
    path = requests.context.paths.log(log)
    _, found = await requests.call(Sync(path), Children(path))
    numbers = sorted(number for number in map(e.number_of, found.children) if number >= 0)
    if found.error or (numbers and numbers[-1] > ENTRIES_MAX):
        # It is full, or another reader has begun a new one, or it was deleted by hand.
        await _switch(requests, base, version, is_new=True)
        return await read(requests, command)
    newest = await _events(requests, log, numbers[-1:])
    end = newest[-1].position if newest else e.position(log, -1, 0)
    if after is None or after > end:  # behind the end: a position of another log
        return EventsReply((), end, end + 1, False)
    is_in_log = after >= e.position(log, -1, 0)
    start = e.entry_at(after) if is_in_log else -1
    events = await _events(requests, log, [n for n in numbers if n >= start][: command.limit + 2])
    events = [event for event in events if event.position > after]
    first = events[0].position if events else end + 1
    # Without a gap, the first entry is the one after `start`.
    is_cut = (log > 1 and not is_in_log) or e.entry_at(first) > start + 1
    part = tuple(events[: command.limit])
    oldest = first if is_cut else min(first, after + 1)
    return EventsReply(part, end, oldest, bool(part) and part[-1].position < end)


async def _follow(requests: Requests, log: int, after: int, limit: int) -> EventsReply | None:
    """Read on in a log without a list of its entries; return None if there is nothing new."""
    events: list[Event] = []
    entry, count = e.entry_at(after), FOLLOWED
    while len(events) <= limit:
        found = await _events(requests, log, range(entry, entry + count))
        numbers = {e.entry_at(event.position) for event in found}
        if not numbers >= set(range(entry, max(numbers, default=entry) + 1)):
            return None  # old entries have been deleted, or nothing is there
        events += [event for event in found if event.position > after]
        if len(numbers) < count:
            break
        entry, count = entry + count, min(2 * count, limit)
    if not events:
        return None
    part = tuple(events[:limit])
    return EventsReply(part, events[-1].position, after + 1, len(part) < len(events))


async def _events(requests: Requests, log: int, numbers: Iterable[int]) -> list[Event]:
    """Return the events of these entries, as far as these exist."""
    path, label, wanted = requests.context.paths.log(log), requests.context.label, list(numbers)
    answers = await requests.call(*(Get(f"{path}/{e.PREFIX}{n:010}") for n in wanted))
    found = [
        event
        for number, answer in zip(wanted, answers, strict=True)
        if answer.stat is not None
        for event in e.events_from(label, answer.data, answer.stat, log, number)
    ]
    if requests.context.sessions is not None:
        requests.context.sessions.update(event.session for event in found)
    return found


async def _search(requests: Requests) -> None:
    """Remove the claims of clients that have died, so that their ends are logged."""
    context, now_ms = requests.context, requests.context.network.now_ms()
    if now_ms < context.search_due_ms:
        return
    context.search_due_ms = now_ms + SEARCH_EVERY_MS
    (found,) = await requests.call(Children(context.paths.sessions))
    before, now = context.sessions, set(map(k.session_of, found.children))
    vanished = set() if before is None else before - now
    if vanished:
        # A session that was closed or ended by a client has a tombstone: its claims are gone.
        (tombs,) = await requests.call(Children(context.paths.tombs))
        vanished -= {k.tomb_of(node)[1] for node in tombs.children}
    if before is None or vanished:
        (found,) = await requests.call(Children(context.paths.resources))
        loader = Loader(requests, Settle(()))
        await loader.load(sorted(map(k.resource_of, found.children)))
        dead = [Place(one.kind, one.name, "") for one in loader.loaded.values() if one.dead]
        await settle(requests, dead)
    context.sessions = now
