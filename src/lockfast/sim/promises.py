"""The promises of a lock store, each checked by what a client can observe.

Nothing here depends on how a store works. The checks read a store before and after a command,
with read-only commands, and report the promises that the step has broken. So they apply to every
store, and to the model and the table as well.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple, Protocol, TypeAlias

from lockfast.core import commands as c
from lockfast.sim.model import BLOCKERS_MAX, COMPATIBLE, ENDED_KEPT_MS, checksum_of, fits

ClaimId: TypeAlias = tuple[str, int]
At: TypeAlias = tuple[str, str]

KINDS = ("lock", "tree", "semaphore", "election", "party", "once")
_READS = (c.Look, c.Claims, c.Inspect, c.Listing, c.Sessions, c.Events)


class Steps(Protocol):
    """Executes commands one at a time: a table, a model or a store."""

    def apply(
        self, command: c.Command, now_ms: int, wall_us: int
    ) -> tuple[c.Reply, list[c.Wake]]: ...


class Step(NamedTuple):
    """One command, and the store's clocks when it arrives."""

    command: c.Command
    now_ms: int
    wall_us: int


class Snapshot(NamedTuple):
    """Everything that can be observed of a store at one time."""

    now_ms: int
    sessions: Mapping[str, c.SessionView]
    claims: Mapping[ClaimId, c.ClaimView]
    resources: Mapping[At, c.ResourceView]
    looks: Mapping[ClaimId, c.Granted | c.Queued]
    """The state of waiting and retained claims."""
    events: tuple[c.Event, ...]
    """Events since the previous snapshot."""
    position: int

    def due_ms(self) -> int:
        """When the next session or claim expires."""
        spans = [view.left_ms for view in self.sessions.values() if not view.ended]
        spans += [claim.left_ms for claim in self.holding().values()]
        spans += [r.closed_ms for r in self.resources.values() if r.closed_ms]
        # The next steps remove the claims of an ended session, some at a time.
        spans += [0 for view in self.sessions.values() if view.ended and view.claims]
        return self.now_ms + min(spans, default=FAR_MS)

    def holding(self) -> dict[ClaimId, c.ClaimView]:
        return {of: claim for of, claim in self.claims.items() if claim.state == "holding"}


FAR_MS = 1 << 60
NOTHING = Snapshot(0, {}, {}, {}, {}, (), 0)


def snapshot(
    store: Steps,
    now_ms: int,
    wall_us: int,
    before: Snapshot = NOTHING,
    kinds: Iterable[str] = KINDS,
) -> Snapshot:
    """Read everything of these kinds, with read-only commands."""

    def read(command: c.Command) -> Any:
        return store.apply(command, now_ms, wall_us)[0]

    sessions = {view.session: view for view in read(c.Sessions()).sessions}
    claims = {}
    for session, view in sessions.items():
        if not view.ended:
            claims.update({claim[:2]: claim for claim in read(c.Claims(session)).claims})
    resources = {}
    for kind in kinds:
        for resource in read(c.Listing(kind)).resources:
            whole = max(resource.holder_count, resource.waiting_count) <= 16
            resources[resource[:2]] = resource if whole else read(c.Inspect(*resource[:2]))
    looks = {
        of: read(c.Look(*of))
        for of, claim in claims.items()
        if claim.state == "waiting" or claim.wants or (claim.block > 1 and claim.state == "holding")
    }
    log = read(c.Events(before.position))
    return Snapshot(now_ms, sessions, claims, resources, looks, log.events, log.end)


class PromiseBrokenError(AssertionError):
    """The store broke a promise."""


class Promises:
    """Follows one store through a history; `check` raises at the first broken promise."""

    def __init__(self) -> None:
        self._token = 0
        self._arrivals = 0
        self._order: dict[ClaimId, tuple[int, int]] = {}
        self._moved: set[ClaimId] = set()
        self._closing: set[ClaimId] = set()
        self._over: set[ClaimId] = set()
        self._ended: dict[str, int] = {}
        self._due_ms = FAR_MS

    def check(
        self, step: Step, reply: c.Reply, wakes: list[c.Wake], before: Snapshot, after: Snapshot
    ) -> None:
        """Raise PromiseBrokenError if this step breaks a promise."""
        seen = _Seen(step, reply, wakes, before, after)
        self._follow(seen)
        checks: list[Callable[[_Seen], Iterator[str]]] = [
            all_holders_are_compatible,
            all_or_none,
            only_what_is_used_is_listed,
            accounts_agree,
            holders_stay,
            nothing_outlives_its_end,
            closed_stays_closed,
            nobody_is_forgotten,
            the_log_is_whole,
            reading_changes_nothing,
            self.tokens_rise,
            self.what_is_over_stays_over,
        ]
        if seen.reads() or step.now_ms < self._due_ms:
            # Otherwise two things happened at once, first the expiries and then the
            # command, and what the first did may be undone when we look.
            checks += [
                permits_stay_within_the_limit,
                self.closed_grants_nothing,
                wakes_are_true,
                whoever_comes_between_is_told,
                who_keeps_is_told_of_others,
                the_log_tells_every_grant,
                self.grants_follow_the_line,
                self.nobody_is_overtaken,
            ]
        for promise in checks:
            for how in promise(seen):
                raise PromiseBrokenError(f"{promise.__name__.replace('_', ' ')}: {how}")
        self._remember(seen)

    def _follow(self, seen: _Seen) -> None:
        """Record the order of entry before the checks run."""
        command = seen.step.command
        if isinstance(command, c.Enter) and seen.entered(command[:2]):
            self._arrivals += 1
            key_ms = seen.step.now_ms - command.head_start_ms
            self._order[command[:2]] = (key_ms, self._arrivals)
            if command.window_ms:
                self._closing.add(command[:2])
        if isinstance(command, c.Break) and command.ahead_of is not None:
            self._moved.add((command.session, command.n))

    def _remember(self, seen: _Seen) -> None:
        self._over |= seen.before.claims.keys() - seen.after.claims.keys()
        command = seen.step.command
        if isinstance(command, c.Leave) and isinstance(seen.reply, c.Done):
            self._over.add((command.session, command.n))
        given = {of: claim.token for of, claim in seen.holding.items()}
        for of, token in (given | seen.fleeting()).items():
            claim = seen.after.claims.get(of) or seen.before.claims[of]
            self._token = max(self._token, token + claim.block - 1)
        if seen.reads():
            return
        now_ms = seen.step.now_ms
        for session, view in seen.after.sessions.items():
            if view.ended:
                self._ended.setdefault(session, now_ms)
        for session, at_ms in list(self._ended.items()):
            if now_ms >= at_ms + ENDED_KEPT_MS:
                del self._ended[session]
                self._over = {of for of in self._over if of[0] != session}
        self._due_ms = min(
            [seen.after.due_ms()] + [at_ms + ENDED_KEPT_MS for at_ms in self._ended.values()]
        )

    def tokens_rise(self, seen: _Seen) -> Iterator[str]:
        """Every grant has a token above all before it, and no two are the same."""
        former = seen.held
        fresh = []
        for of, claim in seen.holding.items():
            old = former.get(of)
            converted = old is not None and old.wants and old.token != claim.token
            if old is None or converted or _becomes_exclusive(old, claim):
                fresh.append((claim.token, claim.block, of))
            elif old.token != claim.token:
                yield f"{of} keeps its grant but {old.token} became {claim.token}"
        for of, token in seen.fleeting().items():
            fresh.append((token, seen.before.claims[of].block, of))
            if getattr(seen.step.command, "session", None) != of[0]:
                yield f"{of} was granted {token} and lost it at once"
        expected = self._token + 1
        for token, block, of in sorted(fresh):
            expected = max(expected, seen.step.wall_us)
            if token < expected:
                yield f"{of} got {token}, expected at least {expected}"
            expected = token + block

    def grants_follow_the_line(self, seen: _Seen) -> Iterator[str]:
        """The tokens of claims granted in one step rise in the order of the queue."""
        for at, resource in seen.after.resources.items():
            news = [
                (self._order[holder[:2]], holder.token)
                for holder in resource.holders
                if len(holder.places) == 1
                and holder[:2] in seen.granted()
                and holder[:2] not in self._moved
            ]
            if [token for _, token in sorted(news)] != sorted(token for _, token in news):
                yield f"at {at}: {news}"

    def closed_grants_nothing(self, seen: _Seen) -> Iterator[str]:
        """A closed resource grants nothing; only its own grant may close it."""
        passed_ms = seen.step.now_ms - seen.before.now_ms
        news = seen.granted() + seen.converted()
        for of in news:
            claim = seen.after.claims[of]
            for place in claim.places:
                before = seen.before.resources.get(place[:2])
                now = seen.after.resources[place[:2]]
                closers = [h.token for h in now.holders if h[:2] in self._closing & set(news)]
                closed = now.closed_ms > 0 and max(closers, default=0) < claim.token
                if closed or (before is not None and before.closed_ms > passed_ms):
                    yield f"{of} was granted {place[:2]}, which is closed"

    def nobody_is_overtaken(self, seen: _Seen) -> Iterator[str]:
        """A grant does not overtake a conflicting claim that was ahead."""
        for of in seen.granted():
            if of in self._moved:
                continue
            for place in seen.after.claims[of].places:
                resource = seen.after.resources[place[:2]]
                ahead = [
                    other for other in resource.waiting if self._order[other[:2]] < self._order[of]
                ]
                for other in ahead:
                    ended = seen.after.sessions[other.session].ended
                    if len(other.places) == 1 and other[:2] not in self._moved and not ended:
                        yield f"{of} holds {place.name!r} before {other[:2]}, who was ahead"
                beside = [_at(other, place[:2]) for other in ahead]
                if place.mode == "permit":
                    holders = (other for other in resource.holders if other[:2] != of)
                    beside += [_at(other, place[:2]) for other in holders]
                if not fits(place, beside, resource.limit):
                    yield f"{of} holds {place} in spite of {beside} ahead"

    def what_is_over_stays_over(self, seen: _Seen) -> Iterator[str]:
        """An ended session or claim does not come back."""
        now_ms = seen.step.now_ms
        for session, at_ms in self._ended.items():
            view = seen.after.sessions.get(session)
            if now_ms < at_ms + ENDED_KEPT_MS and (view is None or not view.ended):
                yield f"session {session} had ended {now_ms - at_ms} ms ago: {view}"
        for of in (seen.after.claims.keys() - seen.before.claims.keys()) & self._over:
            ended_ms = self._ended.get(of[0])
            if ended_ms is None or now_ms < ended_ms + ENDED_KEPT_MS:
                yield f"{of} was finished and is back"


class _Seen:
    """One step, as observed."""

    def __init__(
        self, step: Step, reply: c.Reply, wakes: list[c.Wake], before: Snapshot, after: Snapshot
    ) -> None:
        self.step = step
        self.reply = reply
        self.wakes = wakes
        self.before = before
        self.after = after
        self.held = before.holding()
        """The claims held before the step."""
        self.holding = after.holding()
        """The claims held after the step."""
        self._granted = [of for of in self.holding if of not in self.held]

    def entered(self, of: ClaimId) -> bool:
        return of in self.after.claims and of not in self.before.claims

    def granted(self) -> list[ClaimId]:
        """Claims that hold now and did not before."""
        return self._granted

    def converted(self) -> list[ClaimId]:
        """Claims that became exclusive in this step."""
        return [
            of
            for of, claim in self.holding.items()
            if of in self.held and _becomes_exclusive(self.held[of], claim)
        ]

    def fleeting(self) -> dict[ClaimId, int]:
        """Claims, with their tokens, that were granted and ended within this step: expiries
        come first, then the command."""
        return {
            (event.session, event.n): event.token
            for event in self.after.events
            if event.what == "granted" and (event.session, event.n) not in self.holding
        }

    def known(self) -> set[ClaimId]:
        """All claims before or after the step, including those of expired sessions."""
        lines = (line for r in self.before.resources.values() for line in (r.holders, r.waiting))
        stood = {claim[:2] for line in lines for claim in line}
        return stood | self.before.claims.keys() | self.after.claims.keys()

    def reads(self) -> bool:
        return isinstance(self.step.command, _READS)


def _at(claim: c.ClaimView, at: At) -> c.Place:
    return next(place for place in claim.places if place[:2] == at)


def _becomes_exclusive(old: c.ClaimView, new: c.ClaimView) -> bool:
    return (
        len(new.places) == 1
        and new.places[0].mode == "exclusive"
        and old.places[0].mode != "exclusive"
    )


def all_holders_are_compatible(seen: _Seen) -> Iterator[str]:
    """No two holders have conflicting modes."""
    for at, resource in seen.after.resources.items():
        if at[0] == "semaphore":
            continue
        held = [(holder[:2], _at(holder, at)) for holder in resource.holders]
        for i, (of, place) in enumerate(held):
            for other, beside in held[:i]:
                if (place.mode, beside.mode) not in COMPATIBLE:
                    yield f"{of} holds {at} {place.mode} beside {other} {beside.mode}"


def permits_stay_within_the_limit(seen: _Seen) -> Iterator[str]:
    """No grant exceeds the limit of permits; lowering the limit revokes none."""
    granted = set(seen.granted())
    for at, resource in seen.after.resources.items():
        taken = sum(_at(holder, at).weight for holder in resource.holders)
        news = any(holder[:2] in granted for holder in resource.holders)
        if at[0] == "semaphore" and taken > resource.limit and news:
            yield f"{taken} permits of {resource.limit} at {at}"


def all_or_none(seen: _Seen) -> Iterator[str]:
    """A claim holds all its places or none, and otherwise waits at every place."""
    holding = {(r, h[:2]) for r, view in seen.after.resources.items() for h in view.holders}
    waiting = {(r, w[:2]) for r, view in seen.after.resources.items() for w in view.waiting}
    for of, claim in seen.after.claims.items():
        for place in claim.places:
            stands = ((place[:2], of) in holding, (place[:2], of) in waiting)
            if stands != (claim.state == "holding", claim.state == "waiting"):
                yield f"{of} is {claim.state} but at {place[:2]} (holds, waits) is {stands}"
    for _, of in holding | waiting:
        view = seen.after.sessions.get(of[0])
        if of not in seen.after.claims and view is not None and not view.ended:
            yield f"{of} stands in a line but its session does not list it"


def only_what_is_used_is_listed(seen: _Seen) -> Iterator[str]:
    """An unused resource leaves no rows."""
    for at, resource in seen.after.resources.items():
        if len(resource.holders) != resource.holder_count:
            yield f"{at} counts {resource.holder_count} holders of {len(resource.holders)}"
        if len(resource.waiting) != resource.waiting_count:
            yield f"{at} counts {resource.waiting_count} waiting of {len(resource.waiting)}"
        if not (resource.holders or resource.waiting or resource.closed_ms or seen.reads()):
            yield f"{at} is listed though nobody uses it"


def accounts_agree(seen: _Seen) -> Iterator[str]:
    """The count and checksum of a session match its claims."""
    for session, view in seen.after.sessions.items():
        claims = [
            (n, claim.token)
            for (owner, n), claim in seen.after.claims.items()
            if owner == session and claim.state != "revoked"
        ]
        if not view.ended and view.claims != len(claims):
            yield f"session {session} counts {view.claims} claims of {len(claims)}"
        command = seen.step.command
        if isinstance(command, c.Renew) and command.session == session:
            true = (command.count, command.checksum) == (len(claims), checksum_of(claims))
            if isinstance(seen.reply, c.Renewed) and seen.reply.matches != true:
                yield f"keep-alive of {session} says {seen.reply.matches}, its claims say {true}"


def holders_stay(seen: _Seen) -> Iterator[str]:
    """Nothing but leave, expiry or revoke removes a holder, or weakens what it holds."""
    command = seen.step.command
    after = seen.holding
    for of, claim in seen.held.items():
        if of in after:
            now, was = after[of].places, claim.places
            if now != was and not _converts(command, of) and not claim.wants:
                yield f"{of} held {was} and now holds {now}"
            continue
        named = getattr(command, "session", None), getattr(command, "n", None)
        removed = (
            (isinstance(command, c.Leave | c.Revoke) and named == of)
            or (isinstance(command, c.Close | c.Expel | c.RevokeSession) and named[0] == of[0])
            or seen.before.now_ms + claim.left_ms <= seen.step.now_ms
        )
        if not removed:
            yield f"{of} held {claim.places} and no longer does after {command}"


def _converts(command: c.Command, of: ClaimId) -> bool:
    return isinstance(command, c.Convert) and (command.session, command.n) == of


def nothing_outlives_its_end(seen: _Seen) -> Iterator[str]:
    """What has expired by the store's clock is gone after the next step."""
    if seen.reads():
        return
    for of, claim in seen.after.claims.items():
        if claim.left_ms == 0 and claim.state == "holding":
            yield f"{of} is past its end and still there"
    for session, view in seen.before.sessions.items():
        over = seen.before.now_ms + view.left_ms <= seen.step.now_ms
        now = seen.after.sessions.get(session)
        if over and not view.ended and now is not None and not now.ended:
            yield f"session {session} is past its deadline and lives"


def closed_stays_closed(seen: _Seen) -> Iterator[str]:
    """A closed resource stays closed for as long as requested."""
    passed_ms = seen.step.now_ms - seen.before.now_ms
    for at, resource in seen.before.resources.items():
        now = seen.after.resources.get(at)
        if resource.closed_ms - passed_ms > (now.closed_ms if now is not None else 0):
            yield f"{at} was closed for {resource.closed_ms} ms, {passed_ms} ms ago"


def nobody_is_forgotten(seen: _Seen) -> Iterator[str]:
    """After a step, every waiting claim is blocked."""
    if seen.reads():
        return
    lacking = {of for of, claim in seen.after.claims.items() if claim.state != "waiting"}
    for at, resource in seen.after.resources.items():
        beside = [_at(holder, at) for holder in resource.holders]
        shut = bool(resource.closed_ms)
        for holder in resource.holders:
            ended = seen.after.sessions[holder.session].ended
            if holder.wants and len(beside) == 1 and not shut and not ended:
                yield f"{holder[:2]} converts, alone at {at}, and is not let"
            shut = shut or bool(holder.wants)
        for waiter in resource.waiting:
            place = _at(waiter, at)
            shut = shut or not fits(place, beside, resource.limit)
            if shut:
                lacking.add(waiter[:2])
            beside.append(place)
    for of in seen.after.claims.keys() - lacking:
        yield f"{of} could hold {seen.after.claims[of].places} and still waits"


def wakes_are_true(seen: _Seen) -> Iterator[str]:
    """A wake reports what happened, and every grant to another session is reported once."""
    command = seen.step.command
    told = [(wake.session, wake.n) for wake in seen.wakes if wake.what == c.WAKE_GRANTED]
    asked = None
    if isinstance(command, c.Enter | c.Convert):
        asked = (command.session, command.n)
    news = [of for of in seen.granted() + seen.converted() if of != asked]
    if sorted(told) != sorted(news):
        yield f"granted {news}, told {told}"
    for wake in seen.wakes:
        of = (wake.session, wake.n)
        if wake.what == c.WAKE_GRANTED and wake.token != seen.after.claims[of].token:
            yield f"{wake} does not tell the token {seen.after.claims[of].token}"
        if wake.what in (c.WAKE_LOOK, c.WAKE_WANTED) and of not in seen.known():
            yield f"{wake} names no claim"
        if wake.what == c.WAKE_ENDED and not seen.after.sessions[wake.session].ended:
            yield f"{wake} names a session that lives"
    for of, claim in seen.after.claims.items():
        former = seen.before.claims.get(of)
        taken = claim.state == "revoked" and former is not None and former.state != "revoked"
        if taken and not any(wake[1:3] == of for wake in seen.wakes):
            yield f"{of} was taken away and is not told"
    for session, view in seen.after.sessions.items():
        was = seen.before.sessions.get(session)
        lost = view.ended and was is not None and not was.ended and not seen.reads()
        closed = isinstance(command, c.Close) and command.session == session
        words = [wake.what for wake in seen.wakes if wake.session == session]
        if words.count(c.WAKE_ENDED) != (1 if lost and not closed else 0):
            yield f"session {session}: ended is {lost}, it was told {words}"


def whoever_comes_between_is_told(seen: _Seen) -> Iterator[str]:
    """A waiter is woken when the claims directly ahead of it change."""
    told = {(wake.session, wake.n) for wake in seen.wakes}
    for of, look in seen.after.looks.items():
        before = seen.before.looks.get(of)
        asked = isinstance(seen.step.command, c.Convert) and seen.step.command[:2] == of
        if of in told or asked:
            continue
        if not isinstance(look, c.Queued) or not isinstance(before, c.Queued):
            continue
        if len(before.ahead) >= BLOCKERS_MAX:
            continue  # there were more than fit, and the reply now names another
        known = {blocker[:2] for blocker in before.ahead}
        new = [blocker[:2] for blocker in look.ahead if blocker[:2] not in known]
        if new:
            yield f"{of} waits for {new} now and was not told"


def who_keeps_is_told_of_others(seen: _Seen) -> Iterator[str]:
    """A client that retains a lock is woken as soon as others wait for it."""
    command = seen.step.command
    words = (c.WAKE_WANTED, c.WAKE_LOOK)
    told = {(wake.session, wake.n) for wake in seen.wakes if wake.what in words}
    for of, look in seen.after.looks.items():
        before = seen.before.looks.get(of)
        asked = isinstance(command, c.Enter | c.Convert) and command[:2] == of
        if of in told or asked or not isinstance(look, c.Granted) or not look.wanted:
            continue
        if not isinstance(before, c.Granted) or not before.wanted:
            yield f"{of} is wanted by others now and was not told"


def the_log_tells_every_grant(seen: _Seen) -> Iterator[str]:
    """The log has each grant once per place."""
    expected = sorted(
        (of, place[:2], seen.after.claims[of].token)
        for of in seen.granted()
        for place in seen.after.claims[of].places
    )
    logged = [
        ((event.session, event.n), (event.kind, event.name), event.token)
        for event in seen.after.events
        if event.what == "granted"
    ]
    if sorted(logged) != expected:
        yield f"granted {expected}, logged {logged}"


def the_log_is_whole(seen: _Seen) -> Iterator[str]:
    """Positions have no gaps, and grants are in the order of their tokens."""
    tokens = [event.token for event in seen.after.events if event.what == "granted"]
    if tokens != sorted(tokens):
        yield f"grants are logged out of order: {tokens}"
    positions = [event.position for event in seen.after.events]
    if positions != list(range(seen.before.position + 1, seen.after.position + 1)):
        yield f"positions {positions} between {seen.before.position} and {seen.after.position}"


def reading_changes_nothing(seen: _Seen) -> Iterator[str]:
    """A read-only command changes nothing and wakes nobody."""
    if not seen.reads():
        return
    if seen.wakes or seen.after.events:
        yield f"it woke {seen.wakes} and wrote {seen.after.events}"
    if seen.granted() or seen.after.resources.keys() != seen.before.resources.keys():
        yield "claims moved"
