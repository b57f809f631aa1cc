"""The content of the live view: pure functions of what was read from the store."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from lockfast.cli.formatting import duration, local_time_ms, safe_text
from lockfast.core.modes import EXCLUSIVE, LOCK, PERMIT
from lockfast.core.wording import counted
from lockfast.flow.admin import ClaimInfo, LockInfo, SessionInfo, WatchEvent
from lockfast.flow.wait_graph import WaitGraph
from lockfast.telemetry.graphs import tree_lines

CONTENTION_S: Final = 60.0
"""Contention is the number of claims that began to wait in this time."""
EVENTS_KEPT: Final = 500
LINES_MAX: Final = 200
"""Lines of a pane; longer lists end with a count."""

WAITERS, AGE, CONTENTION, NAME = "waiters", "age", "contention", "name"
ORDERS: Final = (WAITERS, AGE, CONTENTION, NAME)


class Snapshot(NamedTuple):
    """The store at one moment."""

    locks: tuple[LockInfo, ...] = ()
    sessions: tuple[SessionInfo, ...] = ()
    graph: WaitGraph = WaitGraph(())
    at: float = 0.0
    trouble: str = ""
    """Why the store could not be read; the other fields are then unchanged."""


class Row(NamedTuple):
    """One line of the table."""

    key: str
    cells: tuple[str, ...]
    lock: LockInfo


class EventTail:
    """The latest events, and how many claims began to wait for each lock."""

    def __init__(self) -> None:
        self.events: deque[WatchEvent] = deque(maxlen=EVENTS_KEPT)
        self._waits: deque[tuple[float, str, str]] = deque(maxlen=100_000)

    def add(self, event: WatchEvent) -> None:
        self.events.append(event)
        if event.what in ("waiting", "converting"):
            self._waits.append((event.at, event.kind, event.name))

    def contention(self, now: float) -> dict[tuple[str, str], int]:
        """Return, per lock, how many claims began to wait in the last CONTENTION_S."""
        while self._waits and self._waits[0][0] < now - CONTENTION_S:
            self._waits.popleft()
        counts: dict[tuple[str, str], int] = {}
        for _, kind, name in list(self._waits):
            counts[kind, name] = counts.get((kind, name), 0) + 1
        return counts

    def of(self, lock: LockInfo | None) -> list[WatchEvent]:
        """Return the events of one lock, or of all."""
        known = list(self.events)
        if lock is None:
            return known
        return [event for event in known if (event.kind, event.name) == (lock.kind, lock.name)]


HEADER: Final = ("NAME", "HOLDER", "HELD FOR", "WAITING", "WAITS/MIN")


def rows(
    locks: Sequence[LockInfo], contention: dict[tuple[str, str], int], order: str, pattern: str
) -> list[Row]:
    """Return the rows whose names contain `pattern`, in order."""

    def waits(lock: LockInfo) -> int:
        return contention.get((lock.kind, lock.name), 0)

    def age(lock: LockInfo) -> float:
        return max((claim.seconds for claim in lock.holders), default=0.0)

    keys = {
        WAITERS: lambda lock: (-lock.waiting_count, -age(lock), lock.name),
        AGE: lambda lock: (-age(lock), lock.name),
        CONTENTION: lambda lock: (-waits(lock), -lock.waiting_count, lock.name),
        NAME: lambda lock: (lock.name, lock.kind),
    }
    chosen = [lock for lock in locks if pattern.casefold() in lock.name.casefold()]
    return [_row(lock, age(lock), waits(lock)) for lock in sorted(chosen, key=keys[order])]


def _row(lock: LockInfo, age: float, waits: int) -> Row:
    holder = lock.holders[0].owner if lock.holders else "(free)"
    if lock.holder_count > 1:
        holder += f" and {lock.holder_count - 1} more"
    cells = (
        safe_text(title(lock)),
        safe_text(holder),
        duration(age) if lock.holders else "-",
        str(lock.waiting_count) if lock.waiting_count else "-",
        str(waits) if waits else "-",
    )
    return Row(f"{lock.kind}\x1f{lock.name}", cells, lock)


def title(lock: LockInfo) -> str:
    return lock.name if lock.kind == LOCK else f"{lock.kind} {lock.name}"


def detail_lines(lock: LockInfo | None) -> Iterator[str]:
    """Yield the holders and the queue of a lock."""
    if lock is None:
        yield "no lock is chosen"
        return
    yield f"{title(lock)}: {lock.holder_count} holding, {lock.waiting_count} waiting"
    for claim in lock.holders:
        yield from _holder_lines(claim)
    for number, claim in enumerate(lock.waiting[:LINES_MAX], 1):
        priority = f", priority {claim.priority}" if claim.priority else ""
        yield f"{number:>4}. {claim.owner}, waiting {duration(claim.seconds)}{priority}"
    more = lock.waiting_count - min(len(lock.waiting), LINES_MAX)
    if more > 0:
        yield f"      and {more} more"


def _holder_lines(claim: ClaimInfo) -> Iterator[str]:
    mode = f", {claim.mode}" if claim.mode not in (EXCLUSIVE, PERMIT) else ""
    token = f"token {claim.token}" if claim.permits is None else counted(claim.permits, "permit")
    ends = f"ends in {duration(claim.remaining)}" if claim.remaining > 0 else "expired"
    yield f"held by {claim.owner} for {duration(claim.seconds)}{mode}"
    yield f"        {token}, session {claim.session}, {ends}"
    if claim.value:
        yield f"        value {claim.value}"


def event_lines(events: Sequence[WatchEvent]) -> Iterator[str]:
    """Yield the events, the newest first."""
    if not events:
        yield "no events yet"
    for event in list(events)[: -LINES_MAX - 1 : -1]:
        token = f" token {event.token}" if event.token else ""
        detail = f" {event.detail}" if event.detail else ""
        name = event.name if event.kind == LOCK else f"{event.kind} {event.name}"
        yield f"{local_time_ms(event.at)} {event.what:<9} {name} {event.owner}{token}{detail}"


def graph_lines(graph: WaitGraph) -> Iterator[str]:
    """Yield the wait graph as trees."""
    if not graph.edges:
        yield "nobody waits"
    for number, line in enumerate(tree_lines(graph)):
        if number == LINES_MAX:
            yield "…"
            return
        yield line


def session_lines(sessions: Sequence[SessionInfo]) -> Iterator[str]:
    """Yield the live sessions, those with the most claims first."""
    alive = [session for session in sessions if not session.ended]
    if not alive:
        yield "there are no sessions"
    for session in sorted(alive, key=lambda each: (-each.claims, each.owner))[:LINES_MAX]:
        yield (
            f"{session.owner}: {counted(session.claims, 'claim')}, TTL {duration(session.ttl)}, "
            f"ends in {duration(session.remaining)}, session {session.session}"
        )


def status(snapshot: Snapshot, store: str, order: str, pattern: str, paused: bool) -> str:
    """Return the status line above the table.

    A terminal cuts its end, and the URL of a cluster alone can fill the line.
    """
    waiting = sum(lock.waiting_count for lock in snapshot.locks)
    alive = sum(not session.ended for session in snapshot.sessions)
    parts = [f"STORE: {snapshot.trouble}"] if snapshot.trouble else []
    if paused:
        parts.append("PAUSED")
    parts += [counted(len(snapshot.locks), "lock"), f"{waiting} waiting"]
    parts += [counted(alive, "session"), f"by {order}"]
    if pattern:
        parts.append(f"filter {pattern!r}")
    return " · ".join([*parts, store])
