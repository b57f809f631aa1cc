"""A model of a lock store, written independently of the table that ships.

The table moves claims in small steps and updates counts. This model has only an ordered list of
claims and computes after every step which of them hold: slow, but simple enough to read as the
definition. A mistake in the table would be in every store at once; the model does not repeat it,
because the two share only the commands and the texts of reasons.

The rule: the *front* of a queue is the longest run of waiting claims from its head that is
compatible with the holders and with each other. A claim holds once it is in the front at all its
places.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, TypeAlias

from lockfast.core import commands as c
from lockfast.core import reasons

ENDED_KEPT_MS: Final = 600_000
BLOCKERS_MAX: Final = 16
"""A reply names at most this many claims ahead."""

_COMPATIBLE: Final = """
                   exclusive  shared  update  intent_shared  intent_exclusive
exclusive              .         .       .          .               .
shared                 .         +       +          +               .
update                 .         +       .          +               .
intent_shared          .         +       +          +               +
intent_exclusive       .         .       .          +               +
"""

_KINDS: Final = {
    "lock": "exclusive shared update",
    "tree": "exclusive shared intent_shared intent_exclusive",
    "semaphore": "permit",
    "election": "exclusive",
    "party": "shared",
    "once": "exclusive",
}

At: TypeAlias = tuple[str, str]
"""A resource: kind and name."""


def _read_compatible(text: str) -> frozenset[tuple[str, str]]:
    columns, *lines = text.strip().splitlines()
    cells = (line.split() for line in lines)
    return frozenset(
        (mode, other)
        for mode, *signs in cells
        for other, sign in zip(columns.split(), signs, strict=True)
        if sign == "+"
    )


COMPATIBLE: Final = _read_compatible(_COMPATIBLE)
"""Pairs of modes that may hold a resource at the same time."""


def fits(place: c.Place, beside: Iterable[c.Place], limit: int) -> bool:
    """Return True if a place is compatible with these."""
    if place.mode == "permit":
        return place.weight + sum(other.weight for other in beside) <= limit
    return all((place.mode, other.mode) in COMPATIBLE for other in beside)


def checksum_of(claims: Iterable[tuple[int, int]]) -> int:
    """Return the checksum of claims, each a number and a token (0 while waiting)."""
    return sum(pow((n * 40_503 + token) % 67_108_859, 2) % 2**32 for n, token in claims) % 2**32


class ModelLimits(NamedTuple):
    """The limits of the store."""

    waiting_max: int = 100_000
    claims_max: int = 100_000
    places_max: int = 128
    text_max: int = 4096
    ended_per_step: int = 64
    """How many places of ended sessions one step removes."""


@dataclass
class _Session:
    asked: c.Open
    deadline_ms: int
    renewals: int = 0
    numbers: set[int] = field(default_factory=set)
    """Claim numbers that were used or released."""
    lowest: int = 1
    watching: bool = False
    ended: str = ""
    by: str = ""
    ending: str = ""
    """While an ended session still has claims: the event to log for them."""
    forget_ms: int = 0


@dataclass(eq=False)
class _Claim:
    asked: c.Enter
    key_ms: int
    entered_ms: int
    places: tuple[c.Place, ...]
    state: str = "waiting"
    token: int = 0
    granted_ms: int = 0
    until_ms: int = 0
    value: str | None = None
    actor: str = ""
    step: int = 0
    wants: str = ""
    reason: str = ""
    by: str = ""

    def at(self, at: At) -> c.Place | None:
        kind, name = at
        for place in self.places:
            if place[1] == name and place[0] == kind:
                return place
        return None


class Model:
    """A store as plain lists; `apply` replies as every store must."""

    def __init__(self, limits: ModelLimits | None = None) -> None:
        self.limits = limits or ModelLimits()
        self.now_ms = 0
        self.settled_ms = 0
        """When the queues were last settled; reading does not settle them."""
        self.wall_us = 0
        self.token = 0
        self.sessions: dict[str, _Session] = {}
        self.claims: list[_Claim] = []
        """All claims, waiting and holding, in the order that all queues share."""
        self.closed_ms: dict[At, int] = {}
        self.sizes: dict[At, int] = {}
        self.log: list[c.Event] = []
        self.wakes: list[c.Wake] = []
        self._asking: _Claim | None = None
        self._ends_left = 0

    def apply(self, command: c.Command, now_ms: int, wall_us: int) -> tuple[c.Reply, list[c.Wake]]:
        """Execute one command."""
        self.now_ms = now_ms
        self.wall_us = wall_us
        self.wakes = []
        self._asking = None
        handler: Callable[[Any], c.Reply] = getattr(self, "_" + type(command).__name__.lower())
        if isinstance(command, c.Look | c.Claims | c.Inspect | c.Listing | c.Sessions | c.Events):
            return handler(command), []
        self.settled_ms = now_ms
        self._ends_left = self.limits.ended_per_step
        logged = len(self.log)
        self.closed_ms = {at: ms for at, ms in self.closed_ms.items() if ms > now_ms}
        self._expire()
        self._settle()
        reply = handler(command)
        self._settle()
        used = set(self._used())
        self.sizes = {at: size for at, size in self.sizes.items() if at in used}
        if len(self.log) > logged:
            for session in self.sessions.values():
                if session.watching:
                    self._wake(session, 0, c.WAKE_EVENTS)
        return reply, self.wakes

    # ── who holds ────────────────────────────────────────────────────────────────────

    def _holders(self, at: At) -> list[_Claim]:
        return [claim for claim in self.claims if claim.state == "holding" and claim.at(at)]

    def _line(self, at: At) -> list[_Claim]:
        return [claim for claim in self.claims if claim.state == "waiting" and claim.at(at)]

    def _is_closed(self, at: At) -> bool:
        return self.closed_ms.get(at, 0) > self.settled_ms

    def _front(self, at: At) -> list[_Claim]:
        """Return the waiting claims that could hold now."""
        holders = self._holders(at)
        if self._is_closed(at) or any(claim.wants for claim in holders):
            return []
        beside = [place for claim in holders if (place := claim.at(at))]
        front = []
        for claim in self._line(at):
            place = claim.at(at)
            if place is None or not fits(place, beside, self.sizes.get(at, 0)):
                break
            beside.append(place)
            front.append(claim)
        return front

    def _settle(self) -> None:
        for claim in self.claims:
            if claim.wants and self._may_convert(claim):
                self._set_mode(claim, claim.wants)
                if claim is not self._asking:
                    self._tell(claim, c.WAKE_GRANTED, claim.token)
        for claim in self.claims:
            if (
                claim.state == "waiting"
                and not self.sessions[claim.asked.session].ended
                and all(claim in self._front(place[:2]) for place in claim.places)
            ):
                self._hold(claim)

    def _is_wanted(self, at: At) -> bool:
        return len(self._line(at)) > len(self._front(at)) or any(
            claim.wants for claim in self._holders(at)
        )

    def _may_convert(self, claim: _Claim) -> bool:
        at = claim.places[0][:2]
        if self.sessions[claim.asked.session].ended:
            return False
        return not self._is_closed(at) and self._holders(at) == [claim]

    def _hold(self, claim: _Claim) -> None:
        claim.state = "holding"
        claim.token = self._next_token(claim)
        claim.granted_ms = self.now_ms
        if claim.asked.max_hold_ms:
            claim.until_ms = self.now_ms + claim.asked.max_hold_ms
        self._shut(claim.places, claim.asked.window_ms)
        self._note("granted", claim, claim.value or "")
        if claim is not self._asking:
            self._tell(claim, c.WAKE_GRANTED, claim.token)

    def _set_mode(self, claim: _Claim, mode: str) -> None:
        claim.wants = ""
        claim.places = (claim.places[0]._replace(mode=mode),)
        if mode == "exclusive":
            claim.token = self._next_token(claim)
        self._note("converted", claim)

    def _next_token(self, claim: _Claim) -> int:
        token = max(self.token + 1, self.wall_us)
        self.token = token + claim.asked.block - 1
        return token

    # ── who goes ─────────────────────────────────────────────────────────────────────

    def _expire(self) -> None:
        ending: list[_Session] = []
        for name, session in list(self.sessions.items()):
            if session.ending:
                ending.append(session)
            elif session.ended and session.forget_ms <= self.now_ms:
                del self.sessions[name]
            elif not session.ended and session.deadline_ms <= self.now_ms:
                self._mark_ended(session, "expired", reasons.EXPIRED)
                ending.append(session)
        for session in sorted(ending, key=lambda each: (each.deadline_ms, each.asked.session)):
            self._end_claims(session)
        for claim in list(self.claims):
            ended = self.sessions[claim.asked.session].ended
            if claim.state == "holding" and 0 < claim.until_ms <= self.now_ms and not ended:
                self._revoke_claim(claim, "expired", reasons.MAX_HOLD_ELAPSED)

    def _mark_ended(self, session: _Session, what: str, reason: str, by: str = "") -> None:
        session.ended = reason
        session.by = by
        session.ending = what
        session.watching = False
        if what != "released":
            self._wake(session, 0, c.WAKE_ENDED)

    def _end_claims(self, session: _Session) -> None:
        """Remove claims of an ended session by number, up to the limit of a step."""
        session.deadline_ms = self.now_ms
        for claim in sorted(self._claims_of(session.asked.session), key=lambda it: it.asked.n):
            if self._ends_left <= 0:
                return
            self._ends_left -= max(1, len(claim.places))
            if claim.state != "revoked":
                self._remove(
                    claim, session.ending, session.ended, abnormal=session.ending != "released"
                )
            else:
                self.claims.remove(claim)
        session.ending = ""
        session.forget_ms = self.now_ms + ENDED_KEPT_MS

    def _revoke_claim(self, claim: _Claim, what: str, reason: str, by: str = "") -> None:
        at = self.claims.index(claim)
        self._remove(claim, what, reason, abnormal=True)
        self.claims.insert(at, claim)
        claim.state, claim.wants, claim.places = "revoked", "", ()
        claim.reason, claim.by = reason, by
        self._tell(claim, c.WAKE_LOOK)

    def _remove(
        self, claim: _Claim, what: str, detail: str = "", *, abnormal: bool = False
    ) -> None:
        held = claim.state == "holding"
        if not held and what != "revoked":
            what = "gave_up"
        if held and abnormal:
            self._shut(claim.places, claim.asked.lock_delay_ms)
        self._note(what, claim, detail)
        self.claims.remove(claim)

    def _shut(self, places: Iterable[c.Place], span_ms: int) -> None:
        if span_ms:
            for place in places:
                at = place[:2]
                self.closed_ms[at] = max(self.closed_ms.get(at, 0), self.now_ms + span_ms)

    # ── sessions ─────────────────────────────────────────────────────────────────────

    def _live(self, session_id: str) -> _Session | c.Ended:
        session = self.sessions.get(session_id)
        if session is None:
            return c.Ended(reasons.UNKNOWN_SESSION)
        if session.ended:
            return c.Ended(session.ended, session.by)
        if session.deadline_ms <= self.now_ms:
            return c.Ended(reasons.EXPIRED)
        return session

    def _open(self, command: c.Open) -> c.Reply:
        if command.session in self.sessions:
            live = self._live(command.session)
            return live if isinstance(live, c.Ended) else c.Done()
        for what, text in (("owner", command.owner), ("metadata", command.metadata)):
            if (size := len(text.encode())) > self.limits.text_max:
                return c.Refused(c.WHY_TOO_LARGE, what, size, self.limits.text_max)
        self.sessions[command.session] = _Session(command, self.now_ms + command.ttl_ms)
        return c.Done(found=False)

    def _renew(self, command: c.Renew) -> c.Reply:
        session = self._live(command.session)
        if isinstance(session, c.Ended):
            return session
        session.deadline_ms = self.now_ms + session.asked.ttl_ms
        session.renewals += 1
        session.lowest = max(session.lowest, command.lowest)
        claims = [
            (claim.asked.n, claim.token)
            for claim in self._claims_of(command.session)
            if claim.state != "revoked"
        ]
        matches = (command.count, command.checksum) == (len(claims), checksum_of(claims))
        looks = ((n, self._how(command.session, n)) for n in command.waiting)
        return c.Renewed(matches, tuple(looks))

    def _end_by_command(self, session_id: str, what: str, reason: str, by: str = "") -> c.Reply:
        session = self.sessions.get(session_id)
        if session is None:
            return c.Done(found=False)
        found = not session.ended
        if found:
            self._mark_ended(session, what, reason, by)
            self._end_claims(session)
        return c.Done(found, more=bool(session.ending))

    def _close(self, command: c.Close) -> c.Reply:
        return self._end_by_command(command.session, "released", reasons.CLOSED)

    def _expel(self, command: c.Expel) -> c.Reply:
        session = self.sessions.get(command.session)
        if session and not session.ended and command.renewals not in (None, session.renewals):
            return c.Done(found=False)
        return self._end_by_command(command.session, "expired", command.reason)

    def _revokesession(self, command: c.RevokeSession) -> c.Reply:
        reason = reasons.revoked(command.reason)
        return self._end_by_command(command.session, "revoked", reason, command.by)

    def _watch(self, command: c.Watch) -> c.Reply:
        session = self._live(command.session)
        if isinstance(session, c.Ended):
            return session
        session.watching = command.on
        return c.Done()

    # ── claims ───────────────────────────────────────────────────────────────────────

    def _enter(self, command: c.Enter) -> c.Reply:
        if command.open is not None:
            opened = self._open(command.open)
            if not isinstance(opened, c.Done):
                return opened
        session = self._live(command.session)
        if isinstance(session, c.Ended):
            return session
        known = self._claim(command.session, command.n)
        if known is not None:
            return self._view(known)
        if command.n in session.numbers or command.n < session.lowest:
            return c.Refused(c.WHY_FINISHED)
        refused = self._refuses(command)
        if refused is not None:
            return refused
        session.numbers.add(command.n)
        for place in command.places:
            if place.limit:
                self.sizes.setdefault(place[:2], place.limit)
        claim = _Claim(
            command,
            self.now_ms - command.head_start_ms,
            self.now_ms,
            command.places,
            value=command.value,
            actor=command.actor,
        )
        behind = [i for i, other in enumerate(self.claims) if other.key_ms > claim.key_ms]
        self.claims.insert(behind[0] if behind else len(self.claims), claim)
        self._asking = claim
        self._settle()
        if claim.state == "waiting" and not command.queue:
            ahead = self._ahead(claim, claim.places)
            self.claims.remove(claim)
            return c.Busy(ahead)
        if claim.state == "waiting":
            self._note("waiting", claim)
        return self._view(claim)

    def _refuses(self, command: c.Enter) -> c.Refused | None:
        limits = self.limits
        count = sum(claim.state != "revoked" for claim in self._claims_of(command.session))
        if count >= limits.claims_max:
            return c.Refused(c.WHY_CLAIMS_FULL, "", count + 1, limits.claims_max)
        if not _is_valid(command.places, limits.places_max):
            return c.Refused(c.WHY_INVALID)
        size = len((command.value or "").encode())
        if size > limits.text_max:
            return c.Refused(c.WHY_TOO_LARGE, "value", size, limits.text_max)
        for place in command.places:
            at = place[:2]
            size = self.sizes.get(at, 0)
            if place.limit and size and place.limit != size:
                return c.Refused(c.WHY_LIMIT_DIFFERS, place.name, place.limit, size)
            waiting = len(self._line(at)) - len(self._front(at))
            if command.queue and waiting >= limits.waiting_max:
                return c.Refused(c.WHY_QUEUE_FULL, place.name, waiting + 1, limits.waiting_max)
        return None

    def _leave(self, command: c.Leave) -> c.Reply:
        session = self._live(command.session)
        if isinstance(session, c.Ended):
            return session
        session.numbers.add(command.n)
        claim = self._claim(command.session, command.n)
        if claim is None:
            return c.Done(found=False)
        if claim.state == "revoked":
            self.claims.remove(claim)
            return c.Gone(claim.reason, claim.by)
        self._remove(claim, "released")
        self._shut(claim.places, command.close_ms)
        return c.Done()

    def _revoke(self, command: c.Revoke) -> c.Reply:
        claim = self._claim(command.session, command.n)
        if claim is None or claim.state == "revoked":
            return c.Done(found=False)
        self._revoke_claim(claim, "revoked", reasons.revoked(command.reason), command.by)
        return c.Done()

    def _proclaim(self, command: c.Proclaim) -> c.Reply:
        session = self._live(command.session)
        if isinstance(session, c.Ended):
            return session
        claim = self._claim(command.session, command.n)
        if claim is None:
            return c.Gone(reasons.NOT_HELD)
        if claim.state != "holding":
            return self._view(claim)
        if (size := len(command.value.encode())) > self.limits.text_max:
            return c.Refused(c.WHY_TOO_LARGE, "value", size, self.limits.text_max)
        claim.value = command.value
        self._note("proclaimed", claim, command.value)
        return c.Done()

    def _adopt(self, command: c.Adopt) -> c.Reply:
        session = self._live(command.session)
        if isinstance(session, c.Ended):
            return session
        claim = self._claim(command.session, command.n)
        if claim is None:
            return c.Gone(reasons.NOT_HELD)
        if claim.state != "holding":
            return self._view(claim)
        claim.actor = command.actor
        return c.Done()

    def _convert(self, command: c.Convert) -> c.Reply:
        session = self._live(command.session)
        if isinstance(session, c.Ended):
            return session
        claim = self._claim(command.session, command.n)
        if claim is None:
            return c.Gone(reasons.NOT_HELD)
        if claim.state != "holding" or command.step == claim.step:
            return self._view(claim)
        if command.step < claim.step:
            return c.Refused(c.WHY_FINISHED)
        if len(claim.places) > 1 or claim.places[0].kind != "lock":
            return c.Refused(c.WHY_INVALID)
        if command.mode not in _KINDS["lock"].split():
            return c.Refused(c.WHY_INVALID)
        at = claim.places[0][:2]
        claim.step = command.step
        claim.wants = ""
        self._asking = claim
        if command.mode == claim.places[0].mode:
            self._settle()
            return self._view(claim)
        strength = ("shared", "update", "exclusive").index
        if strength(command.mode) < strength(claim.places[0].mode):
            self._set_mode(claim, command.mode)
            self._settle()
            return self._view(claim)
        others = [other for other in self._holders(at) if other is not claim]
        rivals = [
            other
            for other in others
            if other.wants or ((place := other.at(at)) and place.mode == "update")
        ]
        if rivals:
            owners = (self.sessions[rival.asked.session].asked.owner for rival in rivals)
            return c.Refused(c.WHY_DEADLOCK, ", ".join(owners))
        if command.mode == "update" or self._may_convert(claim):
            self._set_mode(claim, command.mode)
            self._settle()
            return self._view(claim)
        if not command.queue:
            self._settle()
            return c.Busy(self._ahead(claim, claim.places))
        claim.wants = command.mode
        self._note("converting", claim, command.mode)
        return self._view(claim)

    def _resize(self, command: c.Resize) -> c.Reply:
        if command.kind != "semaphore" or command.limit < 1:
            return c.Refused(c.WHY_INVALID)
        at = command[:2]
        if not self._holders(at) and not self._line(at):
            return c.Done(found=False)
        self.sizes[at] = command.limit
        for claim in self._line(at):
            place = claim.at(at)
            if place is not None and place.weight > command.limit:
                reason = reasons.too_many_permits(place.weight, command.limit)
                self._revoke_claim(claim, "gave_up", reason)
        return c.Done()

    def _break(self, command: c.Break) -> c.Reply:
        for witness in command.witnesses:
            seen = self._claim(witness.session, witness.n)
            if seen is None or seen.state == "revoked" or _waits(seen) == witness.held:
                return c.Done(found=False)
        claim = self._claim(command.session, command.n)
        if claim is None or not _waits(claim) or self.sessions[claim.asked.session].ended:
            return c.Done(found=False)
        if command.ahead_of is None:
            if not claim.wants:
                self._revoke_claim(claim, "gave_up", c.WHY_DEADLOCK, command.detail)
                return c.Done()
            claim.wants = ""
            claim.reason = command.detail
            self._note("gave_up", claim, c.WHY_DEADLOCK)
            self._tell(claim, c.WAKE_LOOK)
            return c.Done()
        other = self._claim(*command.ahead_of)
        if other is None or not other.state == claim.state == "waiting":
            return c.Done(found=False)
        if self.claims.index(other) >= self.claims.index(claim):
            return c.Done(found=False)
        self.claims.remove(claim)
        self.claims.insert(self.claims.index(other), claim)
        claim.key_ms = other.key_ms
        self._settle()
        if claim.state == "waiting":
            self._note("waiting", claim, "ahead of a reservation")
            self._tell(claim, c.WAKE_LOOK)
        return c.Done()

    # ── reading ──────────────────────────────────────────────────────────────────────

    def _look(self, command: c.Look) -> c.Reply:
        session = self._live(command.session)
        return session if isinstance(session, c.Ended) else self._how(*command)

    def _how(self, session: str, n: int) -> c.Granted | c.Queued | c.Gone:
        claim = self._claim(session, n)
        return self._view(claim) if claim is not None else c.Gone(reasons.NOT_QUEUED)

    def _view(self, claim: _Claim) -> c.Granted | c.Queued | c.Gone:
        if claim.state == "revoked":
            return c.Gone(claim.reason, claim.by)
        if not _waits(claim):
            mode = claim.places[0].mode if len(claim.places) == 1 else ""
            wanted = claim.asked.block > 1 and any(
                self._is_wanted(place[:2]) for place in claim.places
            )
            return c.Granted(claim.token, self.now_ms - claim.granted_ms, mode, wanted)
        lacking = [place for place in claim.places if claim not in self._front(place[:2])]
        ahead = self._ahead(claim, lacking)
        over_ms = [self.closed_ms[at] for place in lacking if (at := place[:2]) in self.closed_ms]
        for blocker in ahead:
            over_ms.append(self.sessions[blocker.session].deadline_ms)
            other = self._claim(blocker.session, blocker.n)
            if other is not None and other.until_ms:
                over_ms.append(other.until_ms)
        return c.Queued(ahead, max(1, min(over_ms, default=2**60) - self.now_ms))

    def _ahead(self, claim: _Claim, places: Iterable[c.Place]) -> tuple[c.Blocker, ...]:
        """Return the claim directly ahead at each place; for the first one, those that block it."""
        found: list[_Claim] = []
        for place in places:
            at = place[:2]
            line = self._line(at)
            before = line[: line.index(claim)] if claim in line else []
            front = self._front(at)
            stuck = [other for other in before if other not in front]
            found += stuck[-1:] or self._holders(at) + before
        blockers = []
        for other in dict.fromkeys(found):
            if other is claim:
                continue
            session = self.sessions[other.asked.session]
            held = other.state == "holding"
            blockers.append(
                c.Blocker(
                    *other.asked[:2],
                    session.asked.owner,
                    session.asked.process,
                    session.renewals,
                    held,
                    other.token,
                    self.now_ms - (other.granted_ms if held else other.entered_ms),
                )
            )
        return tuple(blockers[:BLOCKERS_MAX])

    def _claims(self, command: c.Claims) -> c.Reply:
        session = self._live(command.session)
        if isinstance(session, c.Ended):
            return session
        claims = sorted(self._claims_of(command.session), key=lambda claim: claim.asked.n)
        return c.ClaimsReply(tuple(map(self._claim_view, claims)))

    def _claim_view(self, claim: _Claim) -> c.ClaimView:
        session = self.sessions[claim.asked.session]
        over_ms = min(session.deadline_ms, claim.until_ms or session.deadline_ms)
        return c.ClaimView(
            session=claim.asked.session,
            n=claim.asked.n,
            owner=session.asked.owner,
            actor=claim.actor,
            places=claim.places,
            state=claim.state,
            token=claim.token,
            priority=claim.asked.priority,
            value=claim.value,
            for_ms=self.now_ms
            - (claim.granted_ms if claim.state == "holding" else claim.entered_ms),
            left_ms=max(0, over_ms - self.now_ms),
            by=claim.by,
            reason=claim.reason,
            block=claim.asked.block,
            wants=claim.wants,
        )

    def _inspect(self, command: c.Inspect) -> c.Reply:
        return self._resource_view(command[:2], command.waiting_max)

    def _resource_view(self, at: At, waiting_max: int) -> c.ResourceView:
        holders, line = self._holders(at), self._line(at)
        return c.ResourceView(
            *at,
            tuple(map(self._claim_view, holders[: max(waiting_max, 16)])),
            tuple(map(self._claim_view, line[:waiting_max])),
            len(holders),
            len(line),
            self.sizes.get(at, 0),
            max(0, self.closed_ms.get(at, 0) - self.now_ms),
        )

    def _listing(self, command: c.Listing) -> c.Reply:
        names = sorted(
            name
            for kind, name in self._used()
            if kind == command.kind and name.startswith(command.prefix) and name > command.after
        )
        views = (self._resource_view((command.kind, name), 16) for name in names[: command.limit])
        return c.ListingReply(tuple(views), len(names) > command.limit)

    def _sessions(self, command: c.Sessions) -> c.Reply:
        names = sorted(name for name in self.sessions if name > command.after)
        views = (self._session_view(self.sessions[name]) for name in names[: command.limit])
        return c.SessionsReply(tuple(views), len(names) > command.limit)

    def _session_view(self, session: _Session) -> c.SessionView:
        asked = session.asked
        live = self._live(asked.session)
        over = isinstance(live, c.Ended)
        return c.SessionView(
            asked.session,
            asked.owner,
            asked.metadata,
            asked.process,
            asked.ttl_ms,
            0 if over else session.deadline_ms - self.now_ms,
            sum(claim.state != "revoked" for claim in self._claims_of(asked.session)),
            session.renewals,
            live.reason if isinstance(live, c.Ended) else "",
            session.by,
        )

    def _events(self, command: c.Events) -> c.Reply:
        end = len(self.log)
        oldest = 1 if self.log else end + 1
        if command.after is None:
            return c.EventsReply((), end, oldest, False)
        after = self.log[max(0, command.after) :]
        return c.EventsReply(tuple(after[: command.limit]), end, oldest, len(after) > command.limit)

    # ── small words ──────────────────────────────────────────────────────────────────

    def _claim(self, session: str, n: int) -> _Claim | None:
        found = (claim for claim in self.claims if claim.asked[:2] == (session, n))
        return next(found, None)

    def _claims_of(self, session: str) -> list[_Claim]:
        return [claim for claim in self.claims if claim.asked.session == session]

    def _used(self) -> set[At]:
        """Return the resources that are in use or closed."""
        used = {place[:2] for claim in self.claims for place in claim.places}
        return used | self.closed_ms.keys()

    def _note(self, what: str, claim: _Claim, detail: str = "") -> None:
        for place in claim.places:
            self.log.append(
                c.Event(
                    len(self.log) + 1,
                    self.wall_us // 1000,
                    what,
                    *place[:3],
                    *claim.asked[:2],
                    self.sessions[claim.asked.session].asked.owner,
                    claim.token,
                    detail,
                )
            )

    def _tell(self, claim: _Claim, what: str, token: int = 0) -> None:
        self._wake(self.sessions[claim.asked.session], claim.asked.n, what, token)

    def _wake(self, session: _Session, n: int, what: str, token: int = 0) -> None:
        self.wakes.append(c.Wake(session.asked.inbox, session.asked.session, n, what, token))


def _waits(claim: _Claim) -> bool:
    return claim.state == "waiting" or bool(claim.wants)


def _is_valid(places: tuple[c.Place, ...], places_max: int) -> bool:
    if not 1 <= len(places) <= places_max or len({place[:2] for place in places}) < len(places):
        return False
    return all(
        place.mode in _KINDS.get(place.kind, "").split()
        and (place.mode != "permit" or 1 <= place.weight <= place.limit)
        for place in places
    )
