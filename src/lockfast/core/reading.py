"""Read-only commands: the state of claims, queues, sessions and the log."""

from __future__ import annotations

from lockfast.core import commands as c
from lockfast.core import rows as r
from lockfast.core.commands import HOLDING
from lockfast.core.lines import FAR_MS, Lines
from lockfast.core.reasons import EXPIRED, NOT_QUEUED, UNKNOWN_SESSION
from lockfast.core.rows import Claim, Session

BEHIND_ALL_NAMES = "\U0010ffff" * 129
"""Sorts after every name: longer in the last character than a name of 512 bytes can be."""


class Reading(Lines):
    """One method per read-only command."""

    def ended_reply(self, session_id: str) -> c.Ended | None:
        """Return `Ended` if the session has ended, or None; changes nothing."""
        session = self.session(session_id)
        if session is None:
            return c.Ended(UNKNOWN_SESSION)
        if session.ended:
            return c.Ended(session.ended, session.by)
        return c.Ended(EXPIRED) if session.deadline_ms <= self.now_ms else None

    def look(self, command: c.Look) -> c.Reply:
        ended = self.ended_reply(command.session)
        if ended is not None:
            return ended
        claim = self.claim(command.session, command.n)
        return self.view(claim) if claim is not None else c.Gone(NOT_QUEUED)

    def claims(self, command: c.Claims) -> c.Reply:
        ended = self.ended_reply(command.session)
        if ended is not None:
            return ended
        prefix = r.claims_prefix(command.session)
        found = self.rows.scan(prefix, r.after_prefix(prefix), FAR_MS)
        return c.ClaimsReply(tuple(self.claim_view(claim) for _, claim in found))

    def inspect(self, command: c.Inspect) -> c.Reply:
        return self.resource_view(command.kind, command.name, command.waiting_max)

    def listing(self, command: c.Listing) -> c.Reply:
        start = r.resource_key(command.kind, max(command.prefix, command.after + "\x00"))
        stop = r.resource_key(command.kind, command.prefix + BEHIND_ALL_NAMES)
        found = self.rows.scan(start, stop, command.limit + 1)
        views = tuple(
            self.resource_view(row.kind, row.name, 16) for _, row in found[: command.limit]
        )
        return c.ListingReply(views, len(found) > command.limit)

    def sessions(self, command: c.Sessions) -> c.Reply:
        start = r.session_key(command.after + "\x00" if command.after else "")
        found = self.rows.scan(start, r.after_prefix(r.SESSION_PREFIX), command.limit + 1)
        views = tuple(self.session_view(row) for _, row in found[: command.limit])
        return c.SessionsReply(views, len(found) > command.limit)

    def session_view(self, row: Session) -> c.SessionView:
        return c.SessionView(
            row.id,
            row.owner,
            row.metadata,
            row.process,
            row.ttl_ms,
            0 if row.ended else max(0, row.deadline_ms - self.now_ms),
            row.claims,
            row.renewals,
            row.ended or (EXPIRED if row.deadline_ms <= self.now_ms else ""),
            row.by,
        )

    def events(self, command: c.Events) -> c.Reply:
        end = self.meta.position
        oldest = self.rows.oldest()
        if oldest is None:
            oldest = end + 1
        if command.after is None:
            return c.EventsReply((), end, oldest, False)
        found = self.rows.events(max(0, command.after), command.limit + 1)
        return c.EventsReply(tuple(found[: command.limit]), end, oldest, len(found) > command.limit)

    def claim_view(self, claim: Claim) -> c.ClaimView:
        session = self.session(claim.session)
        held = claim.state == HOLDING
        left_ms = session.deadline_ms - self.now_ms if session is not None else 0
        if claim.until_ms:
            left_ms = min(left_ms, claim.until_ms - self.now_ms)
        return c.ClaimView(
            claim.session,
            claim.n,
            session.owner if session is not None else "",
            claim.actor,
            claim.places,
            claim.state,
            claim.token,
            claim.priority,
            claim.value,
            self.now_ms - (claim.granted_ms if held else claim.entered_ms),
            max(0, left_ms),
            claim.by,
            claim.reason,
            claim.block,
            claim.wants,
        )

    def resource_view(self, kind: str, name: str, waiting_max: int) -> c.ResourceView:
        resource = self.resource(kind, name)
        holders = self.holders(resource, max(waiting_max, 16))
        waiting: list[Claim] = []
        for line in ("v", "w"):
            waiting += [
                self.claim_by_ref(ref) for _, ref in self._line(line, resource, waiting_max)
            ]
        waiting.sort(key=lambda claim: claim.rank)
        return c.ResourceView(
            kind,
            name,
            tuple(self.claim_view(claim) for claim in holders),
            tuple(self.claim_view(claim) for claim in waiting[:waiting_max]),
            resource.holders,
            resource.waiting + resource.reservations,
            resource.limit,
            max(0, resource.closed_ms - self.now_ms),
        )
