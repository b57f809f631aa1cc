"""Looking at a store from outside, and stepping in: for the person on call."""

from __future__ import annotations

from typing import Final, NamedTuple

from lockfast.core.commands import (
    ClaimView,
    Done,
    Event,
    Inspect,
    Listing,
    ListingReply,
    ResourceView,
    Revoke,
    RevokeSession,
    Sessions,
    SessionsReply,
    SessionView,
)
from lockfast.core.deadlock import Cycle
from lockfast.core.modes import SEMAPHORE
from lockfast.errors import StoreError
from lockfast.flow.client import Core
from lockfast.flow.ending import end_session

PAGE: Final = 500
END_MS: Final = 60_000
"""How long to go on removing the claims of a revoked session. It has ended long before."""


class ClaimInfo(NamedTuple):
    """One holder of a lock, or one that waits for it."""

    owner: str
    session: str
    n: int
    """With `session`, the claim's id: what revoke goes by."""
    actor: str
    mode: str
    state: str
    token: int | None
    """None while it waits, and for a permit of a semaphore, which has none."""
    priority: int
    value: str | None
    seconds: float
    """How long it has been holding, or waiting."""
    remaining: float
    """Until it ends by itself if its session is not renewed."""
    permits: int | None = None
    """How many permits of a semaphore it holds or waits for; None for any other kind."""


class LockInfo(NamedTuple):
    """One lock in use: who holds it, who waits, in order."""

    kind: str
    name: str
    holders: tuple[ClaimInfo, ...]
    waiting: tuple[ClaimInfo, ...]
    holder_count: int
    waiting_count: int
    closed_for: float
    """Seconds until it may be granted again; 0.0 if it may be now."""
    limit: int
    """Of a semaphore; else 0."""


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
    """Why it is over; "" while it lives."""
    by: str


class WatchEvent(NamedTuple):
    """One thing that happened to a lock."""

    position: int
    """Where to go on: watch(after=position)."""
    at: float
    """When, by the store's wall clock, in seconds since 1970."""
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
    """Actors that wait for each other for ever."""

    lines: tuple[str, ...]
    """Who waits for what, and who is ahead there."""
    actors: tuple[str, ...]
    victim_owner: str
    """Whose claim is to be given up: of the lowest priority, then the youngest."""
    victim_session: str
    victim_n: int


async def inspect(core: Core, kind: str, name: str) -> LockInfo:
    return lock_info(await core.ask(Inspect(kind, name), ResourceView))


async def list_locks(core: Core, kind: str, prefix: str) -> list[LockInfo]:
    found: list[LockInfo] = []
    after = ""
    while True:
        reply = await core.ask(Listing(kind, prefix, after, PAGE), ListingReply)
        found += [lock_info(view) for view in reply.resources]
        if not reply.more:
            return found
        after = found[-1].name


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
    """Take a lock from all who hold it at this instant; returns from how many."""
    count = 0
    for holder in (await inspect(core, kind, name)).holders:
        # By claim and not by name: whoever gets it meanwhile keeps it.
        done = await core.ask(Revoke(holder.session, holder.n, by, reason), Done)
        count += done.found
    return count


async def revoke_session(core: Core, session: str, by: str, reason: str) -> int:
    """End a session with all its claims. Return 1, or 0 if it had ended before."""
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
        claim.for_ms / 1000,
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
