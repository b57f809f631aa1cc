"""One command of one principal: validate it, complete it, execute it, filter the reply.

The store answers commands; it knows nothing of principals. This is the only module that decides
what a principal may do with sessions and locks.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from typing import Any, Final, NamedTuple, cast

from lockfast.core import commands as c
from lockfast.core.codec import ITEMS_MAX, TOKEN_MAX
from lockfast.core.modes import UPGRADES
from lockfast.core.names import INTERNAL, check_prefix, has_controls
from lockfast.core.reasons import UNKNOWN_SESSION
from lockfast.flow import deadlock
from lockfast.flow.capabilities import require_supported
from lockfast.flow.silent_sessions import just_before
from lockfast.ports import Store
from lockfast.runtimes.platform import now_ms
from lockfast.server.checks import (
    BOUNDS_MAX_MS,
    PAGE_MAX,
    REASON_MAX,
    check_kind,
    check_lock,
    check_range,
    check_session,
    invalid,
)
from lockfast.server.problems import forbidden
from lockfast.server.quotas import Usage
from lockfast.server.rights import ACQUIRE, ADMIN, READ, REVOKE, Rights
from lockfast.server.wakes import Wakes

SEND_MS: Final = 4000
"""How long the store may take; clients wait about as long."""
TTL_MS_MAX: Final = 24 * 3600 * 1000
BLOCK_MAX: Final = 1 << 40
BOUND_MAX: Final = 100_000
"""How many sessions are cached with their principals; the store knows the others."""

DETAIL_HIDDEN: Final = "through claims of other principals, which are not shown"
"""What the victim of a deadlock is told, unless it has found the deadlock itself."""

_PAGES: Final = {
    c.ListingReply: ("resources", "name"),
    c.SessionsReply: ("sessions", "session"),
    c.EventsReply: ("events", "position"),
}
"""The field with the entries of a page, and the field of an entry by which `after` names it."""

_PRINCIPAL: Final = re.compile(r" \[([^\[\]]*)\]$")


class Caller(NamedTuple):
    """The sender of a command, and its rights in this namespace."""

    principal: str
    """"" only for the anonymous user of --insecure-dev, who owns everything."""
    rights: Rights
    usage: Usage


class Service:
    """The commands of one namespace."""

    def __init__(self, store: Store, send: Callable[[c.Command, int], Awaitable[c.Reply]]) -> None:
        self.store = store
        self.wakes = Wakes(store)
        self._send = send
        self._bound: dict[str, str] = {}

    async def execute(self, caller: Caller, command: c.Command) -> c.Reply:
        """Execute a command. Raises Problem if the principal lacks the right or exceeds a quota."""
        _validate(command)
        require_supported(self.store.capabilities, command)
        handler = _HANDLERS.get(type(command))
        if handler is not None:
            return await handler(self, caller, command)
        return await self._own(caller, command)

    async def send(self, command: c.Command) -> c.Reply:
        return await self._send(command, SEND_MS)

    # ── sessions and their principals ────────────────────────────────────────────────

    async def principal_of(self, session: str) -> str | None:
        """Return the principal that opened a session; None if the store does not have it."""
        found = self._bound.get(session)
        if found is None:
            reply = await self.send(c.Sessions(just_before(session), 1))
            views = reply.sessions if isinstance(reply, c.SessionsReply) else ()
            for view in views:
                if view.session == session:
                    found = principal_in(view.owner)
                    self._bind(session, found)
        return found

    def bound(self, session: str) -> str | None:
        """Return the principal of a session if this server has cached it."""
        return self._bound.get(session)

    def _bind(self, session: str, principal: str) -> None:
        if len(self._bound) >= BOUND_MAX:
            self._bound.clear()
        self._bound[session] = principal

    async def is_foreign(self, caller: Caller, session: str) -> bool:
        """Return whether a session belongs to another principal."""
        if not caller.principal:
            return False
        principal = await self.principal_of(session)
        return principal is not None and principal != caller.principal

    async def _own(self, caller: Caller, command: c.Command) -> c.Reply:
        """Execute a command on the caller's own session; reply "unknown session" for any other."""
        session: str = command.session  # type: ignore[union-attr]
        if await self.is_foreign(caller, session):
            return c.Ended(UNKNOWN_SESSION)
        self.wakes.is_used(session)
        reply = await self.send(command)
        if isinstance(command, c.Leave):
            caller.usage.left(session, command.n)
        elif isinstance(reply, c.Ended) or isinstance(command, c.Close):
            self._ended(caller, session)
        elif isinstance(reply, c.Renewed):
            caller.usage.renewed(session)
            for n, look in reply.looks:
                if isinstance(look, c.Granted):
                    caller.usage.granted(session, n)
        elif isinstance(command, c.Look) and isinstance(reply, c.Granted):
            caller.usage.granted(session, command.n)
        return self._filtered(caller, command, reply)

    def _ended(self, caller: Caller, session: str) -> None:
        caller.usage.ended(session)
        self.wakes.forget(session)

    def _completed(self, caller: Caller, command: c.Open) -> c.Open:
        """Replace the fields that no client may choose."""
        inbox = self.wakes.inbox_of(command.session, command.ttl_ms / 1000)
        command = command._replace(inbox=inbox, process="")
        if not caller.principal:
            return command
        return command._replace(owner=with_principal(command.owner, caller.principal))

    async def _open(self, caller: Caller, command: c.Open) -> c.Reply:
        caller.usage.may_open(command.session)
        if await self.is_foreign(caller, command.session):
            return c.Ended(UNKNOWN_SESSION)
        reply = await self.send(self._completed(caller, command))
        if isinstance(reply, c.Done):
            # Another principal may have opened the same id since the check above.
            if await self.is_foreign(caller, command.session):
                return c.Ended(UNKNOWN_SESSION)
            caller.usage.opened(command.session, command.ttl_ms)
        return reply

    # ── claims ───────────────────────────────────────────────────────────────────────

    async def _enter(self, caller: Caller, command: c.Enter) -> c.Reply:
        for place in command.places:
            need(caller, ACQUIRE, place.name)
        caller.usage.may_enter(command.session, command.n)
        opening = command.open
        if opening is not None and caller.principal:
            # Settle first whose session it is; only then may a claim enter it.
            if self.bound(command.session) != caller.principal:
                opened = await self._open(caller, opening)
                if not isinstance(opened, c.Done):
                    return opened
            command = command._replace(open=None)
        elif opening is not None:
            caller.usage.may_open(command.session)
            command = command._replace(open=self._completed(caller, opening))
        if await self.is_foreign(caller, command.session):
            return c.Ended(UNKNOWN_SESSION)
        reply = await self.send(command)
        if opening is not None and not isinstance(reply, c.Ended):
            caller.usage.opened(command.session, opening.ttl_ms)
        if isinstance(reply, c.Granted | c.Queued):
            names = tuple(place.name for place in command.places)
            waits = isinstance(reply, c.Queued)
            caller.usage.entered(command.session, command.n, names, waits)
        return self._filtered(caller, command, reply)

    async def _contend(self, caller: Caller, command: c.Contend) -> c.Reply:
        for place in command.enter.places:
            need(caller, ACQUIRE, place.name)
        session = command.enter.session
        opening = command.enter.open
        if opening is not None:
            opened = await self._open(caller, opening)
            if not isinstance(opened, c.Done):
                return opened
        if await self.is_foreign(caller, session):
            return c.Ended(UNKNOWN_SESSION)
        caller.usage.may_enter(session, command.enter.n)
        entering = command.enter._replace(open=None)
        return self._filtered(caller, command, await self.send(command._replace(enter=entering)))

    async def _change(self, caller: Caller, command: c.Convert | c.Proclaim) -> c.Reply:
        """Change a claim; its principal may have lost the right since it entered.

        Without the right, a downgrade or the cancellation of an upgrade is still allowed.
        """
        session, n = command.session, command.n
        if await self.is_foreign(caller, session):
            return c.Ended(UNKNOWN_SESSION)
        names = caller.usage.names_of(session, n)
        if not (names and all(caller.rights.allow(ACQUIRE, name) for name in names)):
            claim = await self._claim(session, n)
            for place in claim.places if claim is not None else ():
                if isinstance(command, c.Proclaim) or (place.mode, command.mode) in UPGRADES:
                    need(caller, ACQUIRE, place.name)
        return await self._own(caller, command)

    async def _resize(self, caller: Caller, command: c.Resize) -> c.Reply:
        need(caller, ADMIN, command.name)
        return await self.send(command)

    # ── other clients' claims ────────────────────────────────────────────────────────

    async def _revoke(self, caller: Caller, command: c.Revoke) -> c.Reply:
        if not caller.rights.everything:
            claim = await self._claim(command.session, command.n)
            if claim is None or not _sees(caller, claim.places):
                return c.Done(found=False)
            if not all(caller.rights.allow(REVOKE, place.name) for place in claim.places):
                # Do not name the place: it may be one that the caller may not read.
                raise forbidden(f"{caller.principal} has no right to revoke this claim")
        return await self.send(command._replace(by=caller.principal or command.by))

    async def _revoke_session(self, caller: Caller, command: c.RevokeSession) -> c.Reply:
        await self._need_own(caller, command.session)
        reply = await self.send(command._replace(by=caller.principal or command.by))
        self.wakes.forget(command.session)
        return reply

    async def _expel(self, caller: Caller, command: c.Expel) -> c.Reply:
        await self._need_own(caller, command.session)
        return await self.send(command)

    async def _need_own(self, caller: Caller, session: str) -> None:
        """Raise Problem unless the caller may end a session; unknown and foreign ones are alike."""
        if caller.rights.everything:
            return
        if await self.principal_of(session) != caller.principal:
            raise forbidden("only an administrator ends sessions of others")

    async def _break(self, caller: Caller, command: c.Break) -> c.Reply:
        """Break a deadlock; of other principals only one that the server finds, too."""
        if not await self.is_foreign(caller, command.session):
            return await self.send(command)
        if caller.rights.everything:
            return await self.send(command._replace(detail=DETAIL_HIDDEN))
        claim = await self._claim(command.session, command.n)
        if claim is None or not _sees(caller, claim.places):
            return c.Done(found=False)
        start = [place[:2] for place in claim.places]
        for cycle in await deadlock.look(self.send, start, now_ms):
            if cycle.victim[:2] == command[:2] or (
                cycle.passing is not None and cycle.passing[0][:2] == command[:2]
            ):
                await deadlock.end(self.send, cycle._replace(lines=(DETAIL_HIDDEN,)))
                return c.Done()
        return c.Done(found=False)

    async def _claim(self, session: str, n: int) -> c.ClaimView | None:
        reply = await self.send(c.Claims(session))
        claims = reply.claims if isinstance(reply, c.ClaimsReply) else ()
        return next((claim for claim in claims if claim.n == n), None)

    # ── reading ──────────────────────────────────────────────────────────────────────

    async def _claims(self, caller: Caller, command: c.Claims) -> c.Reply:
        foreign = await self.is_foreign(caller, command.session)
        reply = await self.send(command)
        if not foreign or caller.rights.everything or not isinstance(reply, c.ClaimsReply):
            return reply
        return c.ClaimsReply(
            tuple(_seen(caller, claim) for claim in reply.claims if _sees(caller, claim.places))
        )

    async def _inspect(self, caller: Caller, command: c.Inspect) -> c.Reply:
        if not caller.rights.allow(READ, command.name):
            return c.ResourceView(command.kind, command.name, (), (), 0, 0, 0, 0)
        return _seen_resource(caller, await self.send(command))

    async def _listing(self, caller: Caller, command: c.Listing) -> c.Reply:
        def show(view: c.ResourceView) -> c.ResourceView | None:
            if INTERNAL in view.name or not caller.rights.allow(READ, view.name):
                return None
            return _seen_resource(caller, view)

        return await self._page(command, show)

    async def _sessions(self, caller: Caller, command: c.Sessions) -> c.Reply:
        def show(view: c.SessionView) -> c.SessionView | None:
            is_own = principal_in(view.owner) == caller.principal
            return view if is_own or caller.rights.everything else None

        return await self._page(command, show)

    async def _events(self, caller: Caller, command: c.Events) -> c.Reply:
        def show(event: c.Event) -> c.Event | None:
            return event if caller.rights.allow(READ, event.name) else None

        return await self._page(command, show)

    async def _page(
        self, command: c.Listing | c.Sessions | c.Events, show: Callable[[Any], Any]
    ) -> c.Reply:
        """Return the next page of a list; `show` returns what to show of an entry, or None.

        Pages may be short: a client continues after the last entry that it got. A page without
        visible entries is skipped, and the next ones are read in the largest size, so that a
        request with a small `limit` cannot cost thousands.
        """
        limit = command.limit
        while True:
            reply: Any = await self.send(command)
            if type(reply) not in _PAGES:
                return cast(c.Reply, reply)
            entries, position = _PAGES[type(reply)]
            found = getattr(reply, entries)
            shown = tuple(seen for entry in found if (seen := show(entry)) is not None)
            if shown or not reply.more:
                more = reply.more or len(shown) > limit
                return cast(c.Reply, reply._replace(**{entries: shown[:limit], "more": more}))
            command = command._replace(after=getattr(found[-1], position), limit=PAGE_MAX)

    def _filtered(self, caller: Caller, command: c.Command, reply: c.Reply) -> c.Reply:
        """Hide who is ahead from a principal that may acquire but not read."""
        if isinstance(command, c.Enter | c.Look | c.Convert | c.Leave):
            ahead = reply.ahead if isinstance(reply, c.Queued) else ()
            self.wakes.is_waiting(command.session, command.n, ahead)
        if caller.rights.everything:
            return reply
        if isinstance(reply, c.Queued | c.Busy):
            entering = command.enter if isinstance(command, c.Contend) else command
            if isinstance(entering, c.Enter):
                names = tuple(place.name for place in entering.places)
            else:
                assert isinstance(entering, c.Look | c.Convert)
                names = caller.usage.names_of(entering.session, entering.n)
            return reply if _reads(caller, names) else reply._replace(ahead=())
        if isinstance(reply, c.Refused) and isinstance(command, c.Convert):
            names = caller.usage.names_of(command.session, command.n)
            return reply if _reads(caller, names) else reply._replace(detail="")
        if isinstance(reply, c.Renewed):
            assert isinstance(command, c.Renew)
            session, looks = command.session, []
            for n, look in reply.looks:
                if isinstance(look, c.Queued):
                    names = caller.usage.names_of(session, n)
                    look = look if _reads(caller, names) else look._replace(ahead=())
                looks.append((n, look))
            return reply._replace(looks=tuple(looks))
        return reply


def _reads(caller: Caller, names: tuple[str, ...]) -> bool:
    """Return whether the caller may read all names; False if the names are unknown."""
    return bool(names) and all(caller.rights.allow(READ, name) for name in names)


def principal_in(owner: str) -> str:
    """Return the principal that a server has appended to an owner label; "" if there is none."""
    found = _PRINCIPAL.search(owner)
    return found[1] if found is not None else ""


def with_principal(owner: str, principal: str) -> str:
    """Return an owner label that names the principal, and no other."""
    return f"{_PRINCIPAL.sub('', owner)} [{principal}]"


def need(caller: Caller, verb: str, name: str) -> None:
    if not caller.rights.allow(verb, name):
        raise forbidden(f"{caller.principal} has no right to {verb} {name!r}")


def _sees(caller: Caller, places: tuple[c.Place, ...]) -> bool:
    return any(caller.rights.allow(READ, place.name) for place in places)


def _seen(caller: Caller, claim: c.ClaimView) -> c.ClaimView:
    """Return a claim without the places that the caller may not read."""
    if caller.rights.everything:
        return claim
    places = tuple(p for p in claim.places if caller.rights.allow(READ, p.name))
    return claim._replace(places=places)


def _seen_resource(caller: Caller, view: c.Reply) -> c.ResourceView:
    assert isinstance(view, c.ResourceView)
    return view._replace(
        holders=tuple(_seen(caller, claim) for claim in view.holders),
        waiting=tuple(_seen(caller, claim) for claim in view.waiting),
    )


# ── validation ───────────────────────────────────────────────────────────────────────


def _validate(command: c.Command) -> None:
    """Repeat every check that a client makes. Raises Problem or InvalidNameError."""
    session = getattr(command, "session", None)
    if session is not None:
        check_session(session)
    if isinstance(command, c.Contend):
        check_range("waited_ms", command.waited_ms, 0, BOUNDS_MAX_MS)
        _validate(command.enter)
    elif isinstance(command, c.Enter):
        _validate_enter(command)
    elif isinstance(command, c.Open):
        check_range("ttl_ms", command.ttl_ms, 1, TTL_MS_MAX)
        if has_controls(command.owner):
            raise invalid("owner must not have control characters")
    elif isinstance(command, c.Leave):
        check_range("n", command.n, 0, TOKEN_MAX)
        check_range("close_ms", command.close_ms, 0, BOUNDS_MAX_MS)
    elif isinstance(command, c.Inspect | c.Resize):
        check_lock(command.kind, command.name)
        check_kind(command.kind)
        if isinstance(command, c.Inspect):
            check_range("waiting_max", command.waiting_max, 0, ITEMS_MAX)
    elif isinstance(command, c.Listing):
        check_prefix(command.prefix)
        check_prefix(command.after)
        check_kind(command.kind)
        check_range("limit", command.limit, 1, PAGE_MAX)
    elif isinstance(command, c.Sessions | c.Events):
        check_range("limit", command.limit, 1, PAGE_MAX)
        if isinstance(command, c.Events):
            check_range("after", command.after or 0, 0, TOKEN_MAX)
    elif isinstance(command, c.Revoke | c.RevokeSession | c.Expel) and not (
        0 < len(command.reason.encode()) <= REASON_MAX
    ):
        raise invalid(f"reason has 1 to {REASON_MAX} bytes")


def _validate_enter(command: c.Enter) -> None:
    check_range("n", command.n, 0, TOKEN_MAX)
    check_range("block", command.block, 1, BLOCK_MAX)
    for name in ("head_start_ms", "max_hold_ms", "lock_delay_ms", "window_ms"):
        check_range(name, getattr(command, name), -BOUNDS_MAX_MS, BOUNDS_MAX_MS)
    for place in command.places:
        check_lock(place.kind, place.name)  # the store checks kinds, modes and weights itself
    if command.open is not None:
        _validate(command.open)


_HANDLERS: Final[dict[type, Callable[..., Awaitable[c.Reply]]]] = {
    c.Open: Service._open,
    c.Enter: Service._enter,
    c.Contend: Service._contend,
    c.Convert: Service._change,
    c.Proclaim: Service._change,
    c.Resize: Service._resize,
    c.Revoke: Service._revoke,
    c.RevokeSession: Service._revoke_session,
    c.Expel: Service._expel,
    c.Break: Service._break,
    c.Claims: Service._claims,
    c.Inspect: Service._inspect,
    c.Listing: Service._listing,
    c.Sessions: Service._sessions,
    c.Events: Service._events,
}
"""Every other command is for a session of the caller."""
