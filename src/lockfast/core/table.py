"""The lock table: executes every command of `commands.py` as one step over rows.

The memory and SQLite stores run this code; the other stores are tested against it step by
step. It is a pure function of the rows, the command and two clock readings: `now_ms` measures
durations, and `wall_us` only keeps tokens increasing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any, Final, NamedTuple

from lockfast.core import commands as c
from lockfast.core import rows as r
from lockfast.core.checksum import MODULUS, mix
from lockfast.core.commands import HOLDING, REVOKED, WAITING
from lockfast.core.lines import FAR_MS, place_at
from lockfast.core.modes import (
    DOWNGRADES,
    LOCK,
    MODES_OF_KIND,
    PERMIT,
    SEMAPHORE,
    SHARED,
    UPDATE,
    UPGRADES,
)
from lockfast.core.numbers import forget_below, is_seen, see
from lockfast.core.reading import Reading
from lockfast.core.reasons import (
    ALREADY_RELEASED,
    CLOSED,
    EXPIRED,
    LATER_CONVERSION,
    MAX_HOLD_ELAPSED,
    NO_LIMIT,
    NOT_CONVERTIBLE,
    NOT_HELD,
    NOT_QUEUED,
    UNKNOWN_SESSION,
    revoked,
    too_many_permits,
)
from lockfast.core.rows import Claim, Rows, Session
from lockfast.core.shortcut import enter_free, leave_alone

ENDED_KEPT_MS: Final = 600_000
"""How long the row of an ended session is kept, so that its client learns the reason and no
delayed `Open` can reopen it."""

REAPED_PER_STEP: Final = 64


class Limits(NamedTuple):
    """The limits of the table."""

    waiting_max: int = 100_000
    claims_max: int = 100_000
    places_max: int = c.PLACES_MAX
    text_max: int = 4096
    """The maximum size of owner, metadata or value in bytes."""
    ended_per_step: int = 64
    """How many places of ended sessions one step removes. A session may have 100,000 claims,
    and the store executes no other command during a step."""


class Table(Reading):
    """All transitions, one method per command."""

    has_wall_clock = False
    """Whether the clock may be set back. A claim then enters no earlier than the last claim in its
    queues; otherwise it would be ahead of those that wait."""

    def __init__(self, rows: Rows, limits: Limits | None = None) -> None:
        super().__init__(rows)
        self.limits = limits or Limits()
        self._ends_left = 0
        """How many places of ended sessions this step may still remove."""

    def apply(self, command: c.Command, now_ms: int, wall_us: int) -> tuple[c.Reply, list[c.Wake]]:
        """Execute one command. The caller sends the wakes once the step is durable."""
        simple: tuple[c.Reply, list[c.Wake]] | None = None
        if type(command) is c.Enter:
            simple = enter_free(self.rows, command, now_ms, wall_us, self.limits.claims_max)
        elif type(command) is c.Leave:
            simple = leave_alone(self.rows, command, now_ms, wall_us)
        if simple is not None:
            return simple
        self.begin(now_ms, wall_us)
        handler = _WRITES.get(type(command))
        if handler is None:
            return _READS[type(command)](self, command), []
        self._ends_left = self.limits.ended_per_step
        if now_ms >= self.meta.due_ms:
            self._reap()
        reply = handler(self, command)
        self.flush()
        return reply, self.wakes

    def settle_apart(
        self,
        places: Sequence[c.Place],
        now_ms: int,
        wall_us: int,
        look: c.Look | None = None,
        *,
        has_joined: bool = False,
    ) -> tuple[c.Reply, list[c.Wake]]:
        """Settle resources outside any command: for stores whose claims vanish with a lease.

        `look` names a claim whose state is the reply, and which is not woken itself. It
        `has_joined` if the store has just queued it at the only place, without the table.
        """
        self.begin(now_ms, wall_us)
        if now_ms >= self.meta.due_ms:
            self._reap()
        if has_joined:
            resource = self.resource(*places[0][:2])
            if resource.waiting == 1:
                self._tell_retaining(resource)
        self.settle(places)
        reply = self.look(look) if look is not None else c.Done()
        self.flush()
        return reply, [wake for wake in self.wakes if (wake.session, wake.n) != look]

    def end_apart(
        self,
        session_id: str,
        what: str,
        reason: str,
        places: Sequence[c.Place],
        now_ms: int,
        wall_us: int,
    ) -> tuple[c.Reply, list[c.Wake]]:
        """Remove the claims of a session that the store itself has ended, then settle.

        Settles `places` too. `what` is the event that is logged for the claims.
        """
        self.begin(now_ms, wall_us)
        prefix = r.claims_prefix(session_id)
        found = self.rows.scan(prefix, r.after_prefix(prefix), FAR_MS)
        freed = self._remove_claims([claim for _, claim in found], what, reason)
        self.settle({**dict.fromkeys(places), **freed})
        self.flush()
        return c.Done(), self.wakes

    # ── sessions ─────────────────────────────────────────────────────────────────────

    def _live(self, session_id: str) -> Session | c.Ended:
        """Return the live session for changing, or the `Ended` reply."""
        session = self.session(session_id)
        if session is None:
            return c.Ended(UNKNOWN_SESSION)
        if not session.ended and session.deadline_ms <= self.now_ms:
            self.settle(self._end(session, EXPIRED, "expired"))
        if session.ended:
            return c.Ended(session.ended, session.by)
        self._sessions[r.session_key(session_id)] = session
        return session

    def open(self, command: c.Open) -> c.Reply:
        known = self.session(command.session)
        if known is not None:
            live = self._live(command.session)
            return live if isinstance(live, c.Ended) else c.Done(found=True)
        refused = why_too_large(command, self.limits.text_max)
        if refused is not None:
            return refused
        deadline_ms = self.now_ms + command.ttl_ms
        self._sessions[r.session_key(command.session)] = Session(
            id=command.session,
            ttl_ms=command.ttl_ms,
            owner=command.owner,
            metadata=command.metadata,
            inbox=command.inbox,
            process=command.process,
            opened_ms=self.now_ms,
            deadline_ms=deadline_ms,
        )
        self.due(deadline_ms, command.session)
        return c.Done(found=False)

    def renew(self, command: c.Renew) -> c.Reply:
        session = self._live(command.session)
        if isinstance(session, c.Ended):
            return session
        # The due row keeps its old time: when it comes due, `_reap` sees that the session
        # was renewed and moves the row. This saves one write per renewal.
        session.deadline_ms = self.now_ms + session.ttl_ms
        session.renewals += 1
        forget_below(session, command.lowest)
        matches = command.count == session.claims and command.checksum == session.checksum
        looks: list[tuple[int, c.Granted | c.Queued | c.Gone]] = []
        for n in command.waiting:
            claim = self.claim(command.session, n)
            if claim is None:
                looks.append((n, c.Gone(NOT_QUEUED)))
                continue
            self.settle(claim.places)
            claim = self.claim(command.session, n)
            assert claim is not None
            looks.append((n, self.view(claim)))
        return c.Renewed(matches, tuple(looks))

    def close(self, command: c.Close) -> c.Reply:
        return self._end_by_command(command.session, CLOSED, "released")

    def expel(self, command: c.Expel) -> c.Reply:
        session = self.session(command.session)
        if (
            session is not None
            and not session.ended
            and command.renewals not in (None, session.renewals)
        ):
            return c.Done(found=False)
        return self._end_by_command(command.session, command.reason, "expired")

    def revoke_session(self, command: c.RevokeSession) -> c.Reply:
        reason = revoked(command.reason)
        return self._end_by_command(command.session, reason, "revoked", command.by)

    def _end_by_command(self, session_id: str, reason: str, what: str, by: str = "") -> c.Reply:
        session = self.session(session_id)
        if session is None:
            return c.Done(found=False)
        found = not session.ended
        if found:
            self.settle(self._end(session, reason, what, by))
        return c.Done(found, more=bool(session.ending))

    def watch(self, command: c.Watch) -> c.Reply:
        session = self._live(command.session)
        if isinstance(session, c.Ended):
            return session
        if session.watching != command.on:
            self._set_watching(session, command.on)
        return c.Done()

    def _set_watching(self, session: Session, on: bool) -> None:
        session.watching = on
        key = r.WATCHER_PREFIX + session.id
        if on:
            self.rows.put(key, "")
            self.meta.watchers += 1
        else:
            self.rows.delete(key)
            self.meta.watchers -= 1

    def _end(self, session: Session, reason: str, what: str, by: str = "") -> dict[c.Place, None]:
        """End a session and remove its first claims. Return the places to settle.

        From here on the store replies `Ended` to the session and grants its claims nothing.
        The remaining claims keep their places until a later step removes them.
        """
        self._mark_ended(session, reason, what, by)
        return self._end_claims(session)

    def _mark_ended(self, session: Session, reason: str, what: str, by: str = "") -> None:
        self._sessions[r.session_key(session.id)] = session
        session.ended = reason
        session.by = by
        session.ending = what
        session.unseen = ""
        if session.watching:
            self._set_watching(session, False)
        if what != "released":
            self.wakes.append(c.Wake(session.inbox, session.id, 0, c.WAKE_ENDED))

    def _end_claims(self, session: Session) -> dict[c.Place, None]:
        """Remove claims of an ended session, up to the step's limit. Return places to settle.

        If claims remain, the session is due immediately, so that the next write of any client
        continues to remove them.
        """
        self._sessions[r.session_key(session.id)] = session
        prefix = r.claims_prefix(session.id)
        found = self.rows.scan(prefix, r.after_prefix(prefix), self._ends_left + 1)
        chosen: list[Claim] = []
        for _, claim in found:
            if self._ends_left == 0:
                break
            self._ends_left = max(0, self._ends_left - max(1, len(claim.places)))
            chosen.append(claim)
        places = self._remove_claims(chosen, session.ending, session.ended)
        if len(chosen) < len(found):
            session.deadline_ms = self.now_ms
        else:
            session.ending = ""
            session.deadline_ms = self.now_ms + ENDED_KEPT_MS
        self.due(session.deadline_ms, session.id)
        return places

    def _remove_claims(
        self, claims: Sequence[Claim], what: str, reason: str
    ) -> dict[c.Place, None]:
        """Remove claims of an ended session. Return the places to settle."""
        places: dict[c.Place, None] = {}
        for claim in claims:
            if claim.state == REVOKED:
                self.rows.delete(r.claim_key(claim.session, claim.n))
                continue
            self._remove(claim, what, reason)
            places.update(dict.fromkeys(claim.places))
        if what != "released":
            for claim in claims:
                if claim.state == HOLDING:
                    self._delay(claim)
        return places

    def _reap(self) -> None:
        """End the sessions and claims that have expired, and reopen resources that are due."""
        until = r.due_key(self.now_ms + 1, "")
        places: dict[c.Place, None] = {}
        ending: list[Session] = []
        held_too_long: list[tuple[str, int]] = []
        for key, _ in self.rows.scan(r.DUE_PREFIX, until, REAPED_PER_STEP):
            _, _, session_id, *rest = key.split(r.SEPARATOR)
            self.rows.delete(key)
            if not session_id:
                places[c.Place(rest[0], rest[1], "")] = None
                continue
            n = int(rest[0], 16)
            if n:
                held_too_long.append((session_id, n))
                continue
            session = self.session(session_id)
            if session is None:
                continue
            if session.ending:
                ending.append(session)
            elif session.deadline_ms > self.now_ms:
                self.due(session.deadline_ms, session_id)
            elif session.ended:
                self._sessions.pop(r.session_key(session_id), None)
                self.rows.delete(r.session_key(session_id))
            else:
                self._mark_ended(session, EXPIRED, "expired")
                ending.append(session)
        for session in sorted(ending, key=attrgetter("deadline_ms", "id")):
            places.update(self._end_claims(session))
        for session_id, n in held_too_long:
            claim = self.claim(session_id, n)
            if claim is not None and claim.state == HOLDING and not self.session_ended(claim):
                places.update(self._revoke_claim(claim, "expired", MAX_HOLD_ELAPSED, ""))
        # Settle after all expired sessions are marked, so that none of them is granted a lock.
        self.settle(places)
        first = self.rows.scan(r.DUE_PREFIX, r.after_prefix(r.DUE_PREFIX), 1)
        self.meta.due_ms = r.due_at_ms(first[0][0]) if first else FAR_MS

    # ── claims ───────────────────────────────────────────────────────────────────────

    def enter(self, command: c.Enter) -> c.Reply:
        if command.open is not None:
            opened = self.open(command.open)
            if not isinstance(opened, c.Done):
                return opened
        session = self._live(command.session)
        if isinstance(session, c.Ended):
            return session
        n = command.n
        if n <= session.highest:
            known = self.claim(command.session, n)
            if known is not None:
                return self.view(known)
            if is_seen(session, n):
                return c.Refused(c.WHY_FINISHED, ALREADY_RELEASED)
        refused = self._refuses(session, command)
        if refused is not None:
            return refused
        see(session, n)
        entered_ms = self._entry_ms(command.places)
        claim = Claim(
            session=command.session,
            n=n,
            places=command.places,
            state=WAITING,
            # Every recorded claim writes to the log, so the next position is unique.
            rank=r.rank_of(entered_ms - command.head_start_ms, self.meta.position + 1),
            actor=command.actor,
            priority=command.priority,
            entered_ms=entered_ms,
            max_hold_ms=command.max_hold_ms,
            lock_delay_ms=command.lock_delay_ms,
            block=command.block,
            value=command.value,
            window_ms=command.window_ms,
        )
        held = self.stand(claim, command.queue, is_new=True)
        if not held and not command.queue:
            return c.Busy(self.ahead_of(claim)[0])
        session.claims += 1
        session.checksum = (session.checksum + mix(n, 0)) % MODULUS
        if held:
            return self.granted(claim)
        for place in claim.places:
            self.log("waiting", place, claim)
        return self.view(claim)

    def _entry_ms(self, places: Sequence[c.Place]) -> int:
        """Return the instant at which a claim enters these queues."""
        entered_ms = self.now_ms
        for kind, name, *_ in places if self.has_wall_clock else ():
            if self.resource(kind, name).waiting:
                queue = r.line_prefix("w", kind, name)
                for _, ref in self.rows.scan(queue, r.after_prefix(queue), 1, reverse=True):
                    entered_ms = max(entered_ms, self.claim_by_ref(ref).entered_ms)
        return entered_ms

    def _refuses(self, session: Session, command: c.Enter) -> c.Refused | None:
        """Return why this claim can never be granted, or None."""
        limits = self.limits
        if session.claims >= limits.claims_max:
            return c.Refused(
                c.WHY_CLAIMS_FULL, "claims of the session", session.claims + 1, limits.claims_max
            )
        invalid = why_invalid(command.places, limits.places_max)
        if invalid:
            return c.Refused(c.WHY_INVALID, invalid)
        if command.value is not None and len(command.value.encode()) > limits.text_max:
            return c.Refused(c.WHY_TOO_LARGE, "value", len(command.value.encode()), limits.text_max)
        for place in command.places:
            resource = self.resource(place.kind, place.name)
            if place.limit and resource.limit and place.limit != resource.limit:
                return c.Refused(c.WHY_LIMIT_DIFFERS, place.name, place.limit, resource.limit)
            if command.queue and resource.waiting >= limits.waiting_max:
                return c.Refused(
                    c.WHY_QUEUE_FULL, place.name, resource.waiting + 1, limits.waiting_max
                )
        return None

    def leave(self, command: c.Leave) -> c.Reply:
        session = self._live(command.session)
        if isinstance(session, c.Ended):
            return session
        claim = self.claim(command.session, command.n)
        if claim is None:
            see(session, command.n)
            return c.Done(found=False)
        if claim.state == REVOKED:
            self.rows.delete(r.claim_key(claim.session, claim.n))
            return c.Gone(claim.reason, claim.by)
        self._remove(claim, "released" if claim.state == HOLDING else "gave_up")
        if command.close_ms:
            for place in claim.places:
                self.close_until(place, self.now_ms + command.close_ms)
        self.settle(claim.places)
        return c.Done()

    def revoke(self, command: c.Revoke) -> c.Reply:
        claim = self.claim(command.session, command.n)
        if claim is None or claim.state == REVOKED:
            return c.Done(found=False)
        reason = revoked(command.reason)
        self.settle(self._revoke_claim(claim, "revoked", reason, command.by))
        return c.Done()

    def _held(self, session_id: str, n: int) -> Claim | c.Reply:
        """Return the held claim for changing, or the reply that says how it ended."""
        session = self._live(session_id)
        if isinstance(session, c.Ended):
            return session
        claim = self.claim(session_id, n)
        if claim is None:
            return c.Gone(NOT_HELD)
        return claim if claim.state == HOLDING else self.view(claim)

    def proclaim(self, command: c.Proclaim) -> c.Reply:
        claim = self._held(command.session, command.n)
        if not isinstance(claim, Claim):
            return claim
        size = len(command.value.encode())
        if size > self.limits.text_max:
            return c.Refused(c.WHY_TOO_LARGE, "value", size, self.limits.text_max)
        claim.value = command.value
        self.put(claim)
        for place in claim.places:
            self.log("proclaimed", place, claim, command.value)
        return c.Done()

    def adopt(self, command: c.Adopt) -> c.Reply:
        claim = self._held(command.session, command.n)
        if not isinstance(claim, Claim):
            return claim
        claim.actor = command.actor
        self.put(claim)
        return c.Done()

    def convert(self, command: c.Convert) -> c.Reply:
        claim = self._held(command.session, command.n)
        if not isinstance(claim, Claim):
            return claim
        if command.step < claim.step:
            return c.Refused(c.WHY_FINISHED, LATER_CONVERSION)
        if command.step == claim.step:
            return self.view(claim)
        if len(claim.places) > 1 or claim.places[0].kind != LOCK:
            return c.Refused(c.WHY_INVALID, NOT_CONVERTIBLE)
        old, new = claim.places[0].mode, command.mode
        if old != new and (old, new) not in UPGRADES | DOWNGRADES:
            return c.Refused(c.WHY_INVALID, f"{old} cannot be converted to {new}")
        resource = self.resource(*claim.places[0][:2])
        ref = r.claim_ref(claim.session, claim.n)
        claim.step = command.step
        if resource.converting == ref:
            resource.converting = claim.wants = ""
        if (old, new) not in UPGRADES:
            if old != new:
                self.set_mode(claim, resource, new)
            else:
                self.put(claim)
            self.settle(claim.places)
            return self.view(claim)
        if resource.converting or (old == SHARED and resource.held.get(UPDATE)):
            self.put(claim)
            return c.Refused(c.WHY_DEADLOCK, self._who_else_updates(claim, resource))
        closed = resource.closed_ms > self.now_ms
        if new == UPDATE or (resource.holders == 1 and not closed):
            self.set_mode(claim, resource, new)
            self.settle(claim.places)
            return self.view(claim)
        if not command.queue:
            self.put(claim)
            self.settle(claim.places)
            return c.Busy(self.ahead_of(claim)[0])
        self.await_conversion(claim, resource, new)
        return self.view(claim)

    def _who_else_updates(self, claim: Claim, resource: r.ResourceRow) -> str:
        if resource.converting:
            others = [self.claim_by_ref(resource.converting)]
        else:
            others = [
                other
                for other in self.holders(resource, FAR_MS)
                if place_at(other, resource).mode == UPDATE
            ]
        owners = []
        for other in others:
            session = self.session(other.session)
            owners.append(session.owner if session is not None else other.session)
        return ", ".join(owners)

    def resize(self, command: c.Resize) -> c.Reply:
        if command.kind != SEMAPHORE or command.limit < 1:
            return c.Refused(c.WHY_INVALID, NO_LIMIT)
        resource = self.resource(command.kind, command.name)
        if not (resource.holders or resource.waiting or resource.reservations):
            return c.Done(found=False)
        lowered = command.limit < resource.limit
        resource.limit = command.limit
        places = {c.Place(command.kind, command.name, PERMIT): None}
        self._cancel_reservations(resource)
        if lowered:
            # A claim for more permits than the limit would block the queue for good.
            for _, ref in self._line("w", resource, FAR_MS):
                claim = self.claim_by_ref(ref)
                weight = place_at(claim, resource).weight
                if weight > command.limit:
                    reason = too_many_permits(weight, command.limit)
                    places.update(self._revoke_claim(claim, "gave_up", reason, ""))
        self.settle(places)
        return c.Done()

    def break_(self, command: c.Break) -> c.Reply:
        for witness in command.witnesses:
            claim = self.claim(witness.session, witness.n)
            if claim is None or claim.state == REVOKED:
                return c.Done(found=False)
            holds = claim.state == HOLDING and not claim.wants
            if holds != witness.held:
                return c.Done(found=False)
        claim = self.claim(command.session, command.n)
        if claim is None or not (claim.state == WAITING or claim.wants):
            return c.Done(found=False)
        if self.session_ended(claim):
            return c.Done(found=False)
        if command.ahead_of is not None:
            other = self.claim(*command.ahead_of)
            if other is None or not other.state == claim.state == WAITING:
                return c.Done(found=False)
            if other.rank >= claim.rank:
                return c.Done(found=False)
            self.remove_places(claim)
            claim.rank = just_before(other.rank, self.meta.position + 1)
            if self.stand(claim):
                self.wake(claim, c.WAKE_GRANTED, claim.token)
                if self.granted(claim).wanted:
                    self.wake(claim, c.WAKE_WANTED)
            else:
                for place in claim.places:
                    self.log("waiting", place, claim, "ahead of a reservation")
                self.wake(claim, c.WAKE_LOOK)
            return c.Done()
        if claim.wants:
            resource = self.resource(*claim.places[0][:2])
            resource.converting = claim.wants = ""
            claim.reason = command.detail
            self.put(claim)
            self.log("gave_up", claim.places[0], claim, c.WHY_DEADLOCK)
            self.wake(claim, c.WAKE_LOOK)
            self.settle(claim.places)
        else:
            self.settle(self._revoke_claim(claim, "gave_up", c.WHY_DEADLOCK, command.detail))
        return c.Done()

    def _revoke_claim(self, claim: Claim, what: str, reason: str, by: str) -> dict[c.Place, None]:
        """Revoke a claim and record the reason for its client. Return its places."""
        places = dict.fromkeys(claim.places)
        held = claim.state == HOLDING
        self._remove(claim, what, reason)
        if held:
            self._delay(claim)
        claim.state = REVOKED
        claim.reason = reason
        claim.by = by
        claim.wants = ""
        claim.places = ()
        self.put(claim)
        self.wake(claim, c.WAKE_LOOK)
        return places

    def _delay(self, claim: Claim) -> None:
        """Apply the claim's lock_delay after a loss, for resources that cannot check tokens."""
        if claim.lock_delay_ms:
            for place in claim.places:
                self.close_until(place, self.now_ms + claim.lock_delay_ms)

    def _remove(self, claim: Claim, what: str, detail: str = "") -> None:
        """Remove a claim from all its queues and from its session."""
        held = claim.state == HOLDING
        self.remove_places(claim)
        self.rows.delete(r.claim_key(claim.session, claim.n))
        session = self.session_to_change(claim.session)
        session.claims -= 1
        session.checksum = (session.checksum - mix(claim.n, claim.token if held else 0)) % MODULUS
        if not held and what in ("released", "expired"):
            what = "gave_up"
        for place in claim.places:
            self.log(what, place, claim, detail)


_Handler = Callable[[Table, Any], c.Reply]

_WRITES: Final[dict[type, _Handler]] = {
    c.Open: Table.open,
    c.Enter: Table.enter,
    c.Leave: Table.leave,
    c.Convert: Table.convert,
    c.Proclaim: Table.proclaim,
    c.Adopt: Table.adopt,
    c.Renew: Table.renew,
    c.Close: Table.close,
    c.Expel: Table.expel,
    c.Revoke: Table.revoke,
    c.RevokeSession: Table.revoke_session,
    c.Resize: Table.resize,
    c.Break: Table.break_,
    c.Watch: Table.watch,
}
_READS: Final[dict[type, _Handler]] = {
    c.Look: Table.look,
    c.Claims: Table.claims,
    c.Inspect: Table.inspect,
    c.Listing: Table.listing,
    c.Sessions: Table.sessions,
    c.Events: Table.events,
}
assert _READS.keys() == c.READS


def why_too_large(command: c.Open, text_max: int) -> c.Refused | None:
    """Return the refusal of a session whose texts are too long, or None."""
    for what, text in (("owner", command.owner), ("metadata", command.metadata)):
        size = len(text.encode())
        if size > text_max:
            return c.Refused(c.WHY_TOO_LARGE, what, size, text_max)
    return None


def why_invalid(places: Sequence[c.Place], places_max: int) -> str:
    """Return why the places of a claim are invalid, or ""."""
    if not 0 < len(places) <= places_max:
        return f"a claim names 1 to {places_max} resources, not {len(places)}"
    if len(places) > 1 and len({place[:2] for place in places}) < len(places):
        return "a claim may name each resource only once"
    for place in places:
        if place.mode not in MODES_OF_KIND.get(place.kind, ()):
            return f"a {place.kind} has no mode {place.mode}"
        if place.mode == PERMIT and not 1 <= place.weight <= place.limit:
            return too_many_permits(place.weight, place.limit)
    return ""


def just_before(rank: str, arrival: int) -> str:
    """Return a rank directly before `rank` and after all ranks that were before it."""
    return f"{rank[:-16]}{int(rank[-16:], 16) - 1:016x}~{arrival:016x}"
