"""Inspect a store and revoke locks and sessions: the operator's view."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Final, NamedTuple

from lockfast.core.commands import (
    ClaimView,
    Done,
    Event,
    Inspect,
    Listing,
    ListingReply,
    Place,
    Reply,
    ResourceView,
    Revoke,
    RevokeSession,
    Sessions,
    SessionsReply,
    SessionView,
)
from lockfast.core.deadlock import Cycle
from lockfast.core.modes import CONFLICTS, SEMAPHORE
from lockfast.core.names import INTERNAL
from lockfast.errors import StoreError
from lockfast.flow.client import Core
from lockfast.flow.ending import end_session

PAGE: Final = 500
END_MS: Final = 60_000
"""How long to keep removing the claims of a revoked session, after the session has ended."""


class ClaimInfo(NamedTuple):
    """One claim on a lock, held or waiting."""

    owner: str
    session: str
    n: int
    """The claim's number in its session; `(session, n)` identifies the claim."""
    actor: str
    mode: str
    state: str
    token: int | None
    """None while the claim waits, and for permits, which have no token."""
    priority: int
    value: str | None
    seconds: float
    """How long the claim has been held, or has been waiting."""
    remaining: float
    """Seconds until the claim expires unless its session is renewed."""
    permits: int | None = None
    """The number of permits held or waited for; None for anything but a semaphore."""


class LockInfo(NamedTuple):
    """One lock in use: its holders, and its waiting claims in queue order."""

    kind: str
    name: str
    holders: tuple[ClaimInfo, ...]
    waiting: tuple[ClaimInfo, ...]
    holder_count: int
    waiting_count: int
    closed_for: float
    """Seconds until the lock can be granted again; 0.0 if it can be granted now."""
    limit: int
    """The limit of a semaphore; 0 for anything else."""


class SessionInfo(NamedTuple):
    """One session of one client."""

    session: str
    owner: str
    metadata: str
    ttl: float
    remaining: float
    claims: int
    renewals: int
    process: str
    ended: str
    """Why the session ended; "" while it is alive."""
    by: str


class WatchEvent(NamedTuple):
    """One event of a lock."""

    position: int
    """The event's position in the log; continue with watch(after=position)."""
    at: float
    """The time of the event by the store's wall clock, in seconds since 1970."""
    what: str
    kind: str
    name: str
    mode: str
    owner: str
    session: str
    n: int
    token: int | None
    detail: str


class DeadlockInfo(NamedTuple):
    """A deadlock: a cycle of actors that wait for each other."""

    lines: tuple[str, ...]
    """One line per waiting actor: the lock it waits for, and the claims ahead of it."""
    actors: tuple[str, ...]
    victim_owner: str
    """The actor whose claim is cancelled: the one of lowest priority, then the youngest."""
    victim_session: str
    victim_n: int


async def inspect(core: Core, kind: str, name: str) -> LockInfo:
    return lock_info(await core.ask(Inspect(kind, name), ResourceView))


async def inspect_all_holders(core: Core, kind: str, name: str) -> LockInfo:
    """As `inspect`, with all holders, however many there are."""
    reply = await read_all_holders(core.request, kind, name)
    if not isinstance(reply, ResourceView):
        raise StoreError(core.store.label, f"answered {reply!r} to Inspect")
    return lock_info(reply)


async def read_all_holders(
    send: Callable[[Inspect], Awaitable[Reply]], kind: str, name: str
) -> Reply:
    """Read a resource with all its holders: again, if there are more than one reply has shown."""
    command = Inspect(kind, name)
    while True:
        view = await send(command)
        if not isinstance(view, ResourceView) or view.holder_count <= command.waiting_max:
            return view
        # A hundred more, because others may be granted the lock at this moment.
        command = Inspect(kind, name, view.holder_count + 100)


async def is_locked(core: Core, places: Sequence[Place]) -> bool:
    """Return True if a holder conflicts with a claim on these places."""
    for place in places:
        found = await inspect_all_holders(core, place.kind, place.name)
        if any(claim.mode in CONFLICTS[place.mode] for claim in found.holders):
            return True
    return False


async def list_locks(core: Core, kind: str, prefix: str) -> list[LockInfo]:
    found: list[LockInfo] = []
    after = ""
    while True:
        reply = await core.ask(Listing(kind, prefix, after, PAGE), ListingReply)
        found += [lock_info(view) for view in reply.resources if INTERNAL not in view.name]
        if not reply.more:
            return found
        after = reply.resources[-1].name


async def list_sessions(core: Core) -> list[SessionInfo]:
    found: list[SessionInfo] = []
    after = ""
    while True:
        reply = await core.ask(Sessions(after, PAGE), SessionsReply)
        found += [session_info(view) for view in reply.sessions]
        if not reply.more:
            return found
        after = found[-1].session


async def revoke_lock(core: Core, kind: str, name: str, by: str, reason: str) -> int:
    """Revoke a lock from all its current holders. Return their number."""
    count = 0
    for holder in (await inspect_all_holders(core, kind, name)).holders:
        # Revoke by claim, not by name: a client that is granted the lock now keeps it.
        done = await core.ask(Revoke(holder.session, holder.n, by, reason), Done)
        count += done.found
    return count


async def revoke_session(core: Core, session: str, by: str, reason: str) -> int:
    """End a session with all its claims. Return 1, or 0 if it had already ended."""
    command = RevokeSession(session, by, reason)
    reply = await end_session(core.runtime, core.request, command, END_MS)
    if not isinstance(reply, Done):
        raise StoreError(core.store.label, f"answered {reply!r} to RevokeSession")
    return int(reply.found)


def lock_info(view: ResourceView) -> LockInfo:
    return LockInfo(
        view.kind,
        view.name,
        tuple(_claim_info(claim, view) for claim in view.holders),
        tuple(_claim_info(claim, view) for claim in view.waiting),
        view.holder_count,
        view.waiting_count,
        view.closed_ms / 1000,
        view.limit,
    )


def _claim_info(claim: ClaimView, at: ResourceView) -> ClaimInfo:
    place = next((place for place in claim.places if place[:2] == (at.kind, at.name)), None)
    is_permit = at.kind == SEMAPHORE
    return ClaimInfo(
        claim.owner,
        claim.session,
        claim.n,
        claim.actor,
        place.mode if place is not None else "",
        claim.state,
        None if is_permit else claim.token or None,
        claim.priority,
        claim.value,
        max(0, claim.for_ms) / 1000,  # a client may only estimate the store's clock
        claim.left_ms / 1000,
        place.weight if is_permit and place is not None else None,
    )


def session_info(view: SessionView) -> SessionInfo:
    return SessionInfo(
        view.session,
        view.owner,
        view.metadata,
        view.ttl_ms / 1000,
        view.left_ms / 1000,
        view.claims,
        view.renewals,
        view.process,
        view.ended,
        view.by,
    )


def watch_event(event: Event) -> WatchEvent:
    return WatchEvent(
        event.position,
        event.wall_ms / 1000,
        event.what,
        event.kind,
        event.name,
        event.mode,
        event.owner,
        event.session,
        event.n,
        event.token or None,
        event.detail,
    )


def deadlock_info(cycle: Cycle) -> DeadlockInfo:
    return DeadlockInfo(
        cycle.lines,
        tuple(sorted(cycle.actors)),
        cycle.victim.owner,
        cycle.victim.session,
        cycle.victim.n,
    )
