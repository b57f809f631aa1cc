"""Find deadlocks in a store, and break those that involve our own claims."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import Final

from lockfast.core.commands import (
    Break,
    Claims,
    ClaimsReply,
    ClaimView,
    Command,
    Done,
    Inspect,
    Listing,
    ListingReply,
    Reply,
    ResourceView,
    Sessions,
    SessionsReply,
)
from lockfast.core.deadlock import Cycle, find_cycles
from lockfast.core.modes import MODES_OF_KIND
from lockfast.core.placement import CLIENT_DIGITS

RESOURCES_MAX: Final = 256
"""How many resources one search reads. A search that starts elsewhere finds larger cycles."""
SESSIONS_READ: Final = 8
"""How many sessions are read at a time when looking for those of one client."""
LINE_MAX: Final = 1000
PAGE: Final = 500

Send = Callable[[Command], Awaitable[Reply]]


async def look(
    send: Send, start: Iterable[tuple[str, str]], now_ms: Callable[[], int]
) -> list[Cycle]:
    """Find the deadlocks that can be reached from these resources.

    The queues are read one after another, not in one snapshot. That is safe: a real deadlock
    does not change, and `Break` takes effect only if every claim in it is unchanged.
    """
    todo = list(dict.fromkeys(start))
    views: dict[tuple[str, str], ResourceView] = {}
    read_ms: dict[tuple[str, str], int] = {}
    claims_of: dict[str, tuple[ClaimView, ...]] = {}
    while todo and len(views) < RESOURCES_MAX:
        kind, name = todo.pop()
        if (kind, name) in views:
            continue
        view = await send(Inspect(kind, name, LINE_MAX))
        if not isinstance(view, ResourceView):
            continue
        views[kind, name] = view
        read_ms[kind, name] = now_ms()
        actors = {claim.actor for claim in view.holders + view.waiting if claim.actor}
        for session in dict.fromkeys(claim.session for claim in view.holders + view.waiting):
            if session not in claims_of:
                claims_of[session] = await _claims_around(send, session)
            # Also for a session read before: other actors of it may have claims here.
            todo += [
                (place.kind, place.name)
                for claim in claims_of[session]
                if claim.actor in actors
                for place in claim.places
            ]
    end_ms = now_ms()
    return find_cycles([_later(view, end_ms - read_ms[at]) for at, view in views.items()])


async def _claims_around(send: Send, session: str) -> tuple[ClaimView, ...]:
    """Return the claims of all sessions of a session's client: it has one per TTL and shard."""
    client = session[:CLIENT_DIGITS]
    sessions = {session: None}
    after = client
    while after.startswith(client):
        found = await send(Sessions(after, SESSIONS_READ))
        views = found.sessions if isinstance(found, SessionsReply) else ()
        sessions |= {view.session: None for view in views if view.session.startswith(client)}
        if len(views) < SESSIONS_READ:
            break
        after = views[-1].session
    claims: list[ClaimView] = []
    for each in sessions:
        reply = await send(Claims(each))
        claims += reply.claims if isinstance(reply, ClaimsReply) else ()
    return tuple(claims)


def _later(view: ResourceView, ms: int) -> ResourceView:
    """Age the view by `ms`. The victim is the youngest claim, and ages from views that were
    read at different times are comparable only after this correction."""
    return view._replace(
        holders=tuple(claim._replace(for_ms=claim.for_ms + ms) for claim in view.holders),
        waiting=tuple(claim._replace(for_ms=claim.for_ms + ms) for claim in view.waiting),
    )


async def end(send: Send, cycle: Cycle) -> bool:
    """Break a deadlock, provided that all its claims are unchanged. Return False if not."""
    if cycle.passing is not None:
        claim, reservation = cycle.passing
        ahead_of = (reservation.session, reservation.n)
        command = Break(claim.session, claim.n, cycle.witnesses, ahead_of=ahead_of)
    else:
        victim = cycle.victim
        detail = "\n".join(cycle.lines)
        command = Break(victim.session, victim.n, cycle.witnesses, detail=detail)
    reply = await send(command)
    return isinstance(reply, Done) and reply.found


async def all_deadlocks(send: Send, now_ms: Callable[[], int]) -> list[Cycle]:
    """Find every deadlock in the store."""
    start: list[tuple[str, str]] = []
    for kind in MODES_OF_KIND:
        after = ""
        while True:
            reply = await send(Listing(kind, "", after, PAGE))
            if not isinstance(reply, ListingReply):
                break
            start += [
                (view.kind, view.name)
                for view in reply.resources
                if view.waiting_count or any(claim.wants for claim in view.holders)
            ]
            if not reply.more:
                break
            after = reply.resources[-1].name
    found: dict[frozenset[str], Cycle] = {}
    for at in range(0, len(start), RESOURCES_MAX // 4):
        part = start[at : at + RESOURCES_MAX // 4]
        for cycle in await look(send, part, now_ms):
            found.setdefault(cycle.actors, cycle)
    return list(found.values())
