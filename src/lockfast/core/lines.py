"""The queues of claims: one mechanism for every primitive.

A claim has a place in the queue of each resource that it requests, with the same fixed rank
in all of them. A place moves from `waiting` to `held`. For a claim with several places there
is a state in between: a place that could be held now is `reserved` until all places can, so
the claim is granted all of them or none. A reservation blocks conflicting claims of higher
rank; a claim of lower rank that enters later cancels it.

Invariants, which the property tests state independently:
  - reserved places are the longest run from the head of the queue that is compatible with
    the holders and with each other, so they have lower ranks than all waiting places;
  - the head of `waiting` is not compatible, otherwise it would have moved.
So `settle` only ever examines the head of a queue and never searches it.
"""

from __future__ import annotations

from collections.abc import Iterable

from lockfast.core import rows as r
from lockfast.core.checksum import MODULUS, mix
from lockfast.core.commands import (
    HOLDING,
    REVOKED,
    WAITING,
    WAKE_EVENTS,
    WAKE_GRANTED,
    WAKE_LOOK,
    WAKE_WANTED,
    Blocker,
    Event,
    Gone,
    Granted,
    Place,
    Queued,
    Wake,
)
from lockfast.core.modes import CONFLICTS, EXCLUSIVE, PERMIT
from lockfast.core.rows import Claim, Meta, ResourceRow, Rows, Session
from lockfast.core.tokens import next_token

FAR_MS = 1 << 60
BLOCKERS_MAX = 16
"""How many holders are reported to the first waiter, which watches their processes."""


class Lines:
    """The queues of all resources, over the rows of one store, during one command."""

    def __init__(self, rows: Rows) -> None:
        self.rows = rows
        self.now_ms = 0
        self.wall_us = 0
        self.wakes: list[Wake] = []
        self.meta = Meta()
        self._resources: dict[str, ResourceRow] = {}
        self._fresh: set[str] = set()
        self._sessions: dict[str, Session] = {}
        self._logged = False
        self.moves_left = FAR_MS
        """How many claims this step may still move, for stores with bounded steps."""
        self.unsettled: list[ResourceRow] = []
        """Resources where more claims could move; the store settles them in a later step."""

    # ── one command: from begin to flush ─────────────────────────────────────────────

    def begin(self, now_ms: int, wall_us: int) -> None:
        self.now_ms = now_ms
        self.wall_us = wall_us
        self.wakes = []
        self.meta = self.rows.get(r.META_KEY) or Meta(due_ms=FAR_MS)
        self._resources = {}
        self._fresh = set()
        self._sessions = {}
        self._logged = False

    def flush(self) -> None:
        """Write back the changed rows, and delete the row of a resource no longer in use."""
        rows = self.rows
        for key, resource in self._resources.items():
            if (
                resource.holders
                or resource.waiting
                or resource.reservations
                or resource.closed_ms > self.now_ms
            ):
                rows.put(key, resource)
            elif key not in self._fresh:
                rows.delete(key)
        for key, session in self._sessions.items():
            rows.put(key, session)
        if self._logged and self.meta.watchers:
            for key, _ in rows.scan(r.WATCHER_PREFIX, r.after_prefix(r.WATCHER_PREFIX), 1000):
                watcher = key[len(r.WATCHER_PREFIX) :]
                watching = self.session(watcher)
                if watching is not None:
                    self.wakes.append(Wake(watching.inbox, watcher, 0, WAKE_EVENTS))
        rows.put(r.META_KEY, self.meta)

    def session(self, session_id: str) -> Session | None:
        """Return the session's row for reading."""
        key = r.session_key(session_id)
        found: Session | None = self._sessions.get(key) or self.rows.get(key)
        return found

    def session_to_change(self, session_id: str) -> Session:
        session = self.session(session_id)
        assert session is not None, f"claims without their session {session_id}"
        self._sessions[r.session_key(session_id)] = session
        return session

    def resource(self, kind: str, name: str) -> ResourceRow:
        """Return the resource's row for changing; a new one if it is not in use."""
        key = r.resource_key(kind, name)
        found = self._resources.get(key)
        if found is None:
            found = self.rows.get(key)
            if found is None:
                found = ResourceRow(kind, name)
                self._fresh.add(key)
            self._resources[key] = found
        return found

    def claim(self, session: str, n: int) -> Claim | None:
        found: Claim | None = self.rows.get(r.claim_key(session, n))
        return found

    def claim_by_ref(self, ref: str) -> Claim:
        claim = self.claim(*r.parse_ref(ref))
        assert claim is not None, f"a line names a claim that is not there: {ref!r}"
        return claim

    def session_ended(self, claim: Claim) -> bool:
        """Return True if the claim's session has ended, so it must not be granted anything."""
        session = self.session(claim.session)
        return session is None or bool(session.ended)

    def put(self, claim: Claim) -> None:
        self.rows.put(r.claim_key(claim.session, claim.n), claim)

    def due(self, at_ms: int, session: str, n: int = 0) -> None:
        """Record that a session or claim expires at this time."""
        self._due(r.due_key(at_ms, session, n), at_ms)

    def _due(self, key: str, at_ms: int) -> None:
        self.rows.put(key, "")
        if at_ms < self.meta.due_ms:
            self.meta.due_ms = at_ms

    def log(self, what: str, place: Place, claim: Claim, detail: str = "") -> None:
        meta = self.meta
        meta.position += 1
        self._logged = True
        if not self.rows.logs:
            return
        session = self.session(claim.session)
        self.rows.append(
            Event(
                meta.position,
                self.wall_us // 1000,
                what,
                place.kind,
                place.name,
                place.mode,
                claim.session,
                claim.n,
                session.owner if session is not None else "",
                claim.token,
                detail,
            )
        )

    def wake(self, claim: Claim, what: str, token: int = 0) -> None:
        session = self.session(claim.session)
        if session is not None:
            self.wakes.append(Wake(session.inbox, claim.session, claim.n, what, token))

    # ── entering ─────────────────────────────────────────────────────────────────────

    def stand(self, claim: Claim, queue: bool = True, *, is_new: bool = False) -> bool:
        """Enter a claim into all its queues. Return True if it is granted at once.

        With `queue=False`, a claim that cannot be granted now is not recorded.
        """
        resources = [self.resource(place.kind, place.name) for place in claim.places]
        could = [
            self._could_hold(resource, place, claim.rank)
            for resource, place in zip(resources, claim.places, strict=True)
        ]
        at_once = all(could)
        if not at_once and not queue:
            return False
        for resource, place, fitting in zip(resources, claim.places, could, strict=True):
            if place.limit:
                resource.limit = resource.limit or place.limit
            if resource.reservations and not (
                fitting and fits(place, resource.limit, resource.held, resource.reserved)
            ):
                self._cancel_reservations(resource, claim.rank)
        if is_new:
            self.rows.add(r.claim_key(claim.session, claim.n), claim)
        if at_once:
            self._hold(claim)
        else:
            ref = r.claim_ref(claim.session, claim.n)
            for i, (resource, place) in enumerate(zip(resources, claim.places, strict=True)):
                if could[i]:
                    claim.passed |= 1 << i
                    self._reserve(resource, place, claim.rank, ref)
                else:
                    self._queue(resource, claim.rank, ref)
            self.put(claim)
        for resource, place in zip(resources, claim.places, strict=True):
            if resource.waiting:
                self._settle_one(resource)
                self._hint_behind(place, claim.rank)
        return at_once

    def _could_hold(self, resource: ResourceRow, place: Place, rank: str) -> bool:
        if resource.closed_ms > self.now_ms or resource.converting:
            return False
        limit = resource.limit or place.limit
        if not fits(place, limit, resource.held):
            return False
        if resource.waiting:
            head = self._head(place)
            if head is not None and head[0] < rank:
                return False
        if resource.reservations and not fits(place, limit, resource.held, resource.reserved):
            prefix = r.line_prefix("v", *place[:2])
            if not self.rows.scan(prefix + rank, r.after_prefix(prefix), 1):
                return False  # the usual case: all reservations are ahead
            ahead: dict[str, int] = {}
            for _, other in self.rows.scan(prefix, prefix + rank, FAR_MS):
                theirs = place_at(self.claim_by_ref(other), resource)
                ahead[theirs.mode] = ahead.get(theirs.mode, 0) + share(theirs)
            return fits(place, limit, resource.held, ahead)
        return True

    def _cancel_reservations(self, resource: ResourceRow, rank: str = "") -> None:
        """Cancel the reservations behind `rank`; settle restores those that still fit."""
        prefix = r.line_prefix("v", resource.kind, resource.name)
        for _, ref in self.rows.scan(prefix + rank, r.after_prefix(prefix), FAR_MS):
            claim = self.claim_by_ref(ref)
            theirs = place_at(claim, resource)
            claim.passed &= ~(1 << claim.places.index(theirs))
            self.put(claim)
            self._unreserve(resource, theirs, claim.rank)
            self._queue(resource, claim.rank, ref)
            self.wake(claim, WAKE_LOOK)

    def _cancel_closed(self, claim: Claim) -> bool:
        """Cancel a claim's reservations of closed resources; return whether there were any.

        `close_until` does so at once. Where claims vanish with their session, a `lock_delay` begins
        when a client reads the resource, which may be only now.
        """
        reserved = [place for i, place in enumerate(claim.places) if claim.passed >> i & 1]
        rows = [self.resource(place.kind, place.name) for place in reserved]
        closed = [row for row in rows if row.closed_ms > self.now_ms]
        for row in closed:
            self._cancel_reservations(row)
        return bool(closed)

    def _queue(self, resource: ResourceRow, rank: str, ref: str) -> None:
        if not resource.waiting:
            self._tell_retaining(resource)
        resource.waiting += 1
        self.rows.add(r.line_prefix("w", resource.kind, resource.name) + rank, ref)

    def _hint_behind(self, place: Place, rank: str) -> None:
        """Wake the next claim in the queue, because another is now directly ahead of it."""
        prefix = r.line_prefix("w", *place[:2])
        for _, ref in self.rows.scan(prefix + rank + "\x00", r.after_prefix(prefix), 1):
            self.wake(self.claim_by_ref(ref), WAKE_LOOK)

    def _hint_first(self, resource: ResourceRow) -> None:
        """Wake the first waiting claim, so that it reads its state again."""
        head = self._head(resource)
        if head is not None:
            self.wake(self.claim_by_ref(head[1]), WAKE_LOOK)

    def _tell_retaining(self, resource: ResourceRow) -> None:
        """Wake the clients that retain the resource, because others wait for it."""
        if resource.retained:
            for holder in self.holders(resource, FAR_MS):
                if holder.block > 1:
                    self.wake(holder, WAKE_WANTED)

    # ── holding ──────────────────────────────────────────────────────────────────────

    def next_token(self, block: int = 1) -> int:
        return next_token(self.meta, self.wall_us, block)

    def _hold(self, claim: Claim) -> None:
        """Make a claim a holder at all its places."""
        session = self.session_to_change(claim.session)
        ref = r.claim_ref(claim.session, claim.n)
        for i, place in enumerate(claim.places):
            resource = self.resource(place.kind, place.name)
            if claim.passed >> i & 1:
                self._unreserve(resource, place, claim.rank)
            resource.held[place.mode] = resource.held.get(place.mode, 0) + share(place)
            self._add_holder(resource, claim.rank, ref)
            if claim.block > 1:
                resource.retained += 1
            if claim.window_ms:
                self.close_until(place, self.now_ms + claim.window_ms)
        claim.passed = 0
        claim.state = HOLDING
        claim.token = token = self.next_token(claim.block)
        claim.granted_ms = self.now_ms
        if claim.max_hold_ms:
            claim.until_ms = self.now_ms + claim.max_hold_ms
            self.due(claim.until_ms, claim.session, claim.n)
        session.checksum = (session.checksum + mix(claim.n, token) - mix(claim.n, 0)) % MODULUS
        self.put(claim)
        for place in claim.places:
            self.log("granted", place, claim, claim.value or "")

    def _add_holder(self, resource: ResourceRow, rank: str, ref: str) -> None:
        if resource.holders == 0:
            resource.sole = f"{rank}{r.SEPARATOR}{ref}"
        else:
            prefix = r.line_prefix("h", resource.kind, resource.name)
            if resource.sole:
                sole_rank, sole_ref = resource.sole.split(r.SEPARATOR, 1)
                self.rows.put(prefix + sole_rank, sole_ref)
                resource.sole = ""
            self.rows.put(prefix + rank, ref)
        resource.holders += 1

    def holders(self, resource: ResourceRow, limit: int = BLOCKERS_MAX) -> list[Claim]:
        if resource.sole:
            return [self.claim_by_ref(resource.sole.split(r.SEPARATOR, 1)[1])]
        if not resource.holders:
            return []
        return [self.claim_by_ref(ref) for _, ref in self._line("h", resource, limit)]

    def _reserve(self, resource: ResourceRow, place: Place, rank: str, ref: str) -> None:
        resource.reserved[place.mode] = resource.reserved.get(place.mode, 0) + share(place)
        resource.reservations += 1
        self.rows.put(r.line_prefix("v", *place[:2]) + rank, ref)

    def _unreserve(self, resource: ResourceRow, place: Place, rank: str) -> None:
        subtract(resource.reserved, place)
        resource.reservations -= 1
        self.rows.delete(r.line_prefix("v", *place[:2]) + rank)

    # ── leaving ──────────────────────────────────────────────────────────────────────

    def remove_places(self, claim: Claim) -> None:
        """Remove a claim from all its queues. The caller must settle afterwards."""
        ref = r.claim_ref(claim.session, claim.n)
        for i, place in enumerate(claim.places):
            resource = self.resource(place.kind, place.name)
            if claim.state == HOLDING:
                subtract(resource.held, place)
                resource.holders -= 1
                if claim.block > 1:
                    resource.retained -= 1
                if resource.sole:
                    resource.sole = ""
                else:
                    self.rows.delete(r.line_prefix("h", *place[:2]) + claim.rank)
                if resource.converting == ref:
                    resource.converting = ""
            elif claim.passed >> i & 1:
                self._unreserve(resource, place, claim.rank)
            else:
                resource.waiting -= 1
                self.rows.delete(r.line_prefix("w", *place[:2]) + claim.rank)
                if resource.waiting:
                    self._hint_behind(place, claim.rank)
        if claim.until_ms:
            self.rows.delete(r.due_key(claim.until_ms, claim.session, claim.n))
        claim.passed = 0

    def close_until(self, place: Place, at_ms: int) -> None:
        """Grant nothing on this resource before `at_ms`."""
        resource = self.resource(place.kind, place.name)
        if at_ms > resource.closed_ms:
            resource.closed_ms = at_ms
            self._due(r.opening_key(at_ms, place.kind, place.name), at_ms)
        self._cancel_reservations(resource)
        if resource.waiting:
            # The first waiter knows when the holders expire, not when the resource reopens.
            self._hint_first(resource)

    # ── settling ─────────────────────────────────────────────────────────────────────

    def settle(self, places: Iterable[Place]) -> None:
        """Reserve or grant every claim that can move at these resources."""
        for place in places:
            self._settle_one(self.resource(place.kind, place.name))

    def _settle_one(self, resource: ResourceRow) -> None:
        if resource.closed_ms > self.now_ms:
            return
        resource.closed_ms = 0
        retaining: list[Claim] = []
        if resource.converting:
            if resource.holders > 1:
                return
            claim = self.claim_by_ref(resource.converting)
            if self.session_ended(claim):
                return
            self.set_mode(claim, resource, claim.wants)
            self.wake(claim, WAKE_GRANTED, claim.token)
            if claim.block > 1:
                retaining.append(claim)
        moved = False
        # Nothing fits beside an exclusive holder, so the queue need not be read.
        while (
            resource.waiting
            and resource.closed_ms <= self.now_ms
            and EXCLUSIVE not in resource.held
        ):
            head = self._head(resource)
            assert head is not None, f"{resource} counts claims that do not wait"
            rank, ref = head
            claim = self.claim_by_ref(ref)
            place = place_at(claim, resource)
            if not fits(place, resource.limit, resource.held, resource.reserved):
                break
            if self.moves_left == 0:
                self.unsettled.append(resource)
                break
            self.moves_left -= 1
            moved = True
            resource.waiting -= 1
            self.rows.delete(r.line_prefix("w", resource.kind, resource.name) + rank)
            here = 1 << claim.places.index(place)
            passed_all = claim.passed | here == (1 << len(claim.places)) - 1
            if passed_all and self._cancel_closed(claim):
                claim, passed_all = self.claim_by_ref(ref), False
            # A claim of an ended session stays reserved until a later step removes the claim.
            if passed_all and not self.session_ended(claim):
                self._hold(claim)
                self.wake(claim, WAKE_GRANTED, claim.token)
                if claim.block > 1:
                    retaining.append(claim)
            else:
                claim.passed |= here
                self._reserve(resource, place, rank, ref)
                self.put(claim)
        if moved and resource.waiting and resource.holders + resource.reservations > 1:
            # The first waiter watches the processes of all holders, which have changed.
            self._hint_first(resource)
        for claim in retaining:
            if self.granted(claim).wanted:
                self.wake(claim, WAKE_WANTED)

    # ── converting ───────────────────────────────────────────────────────────────────

    def set_mode(self, claim: Claim, resource: ResourceRow, mode: str) -> None:
        """Change a holder's mode at one resource; exclusive mode comes with a new token.

        The caller must settle afterwards.
        """
        old = claim.places[0]
        new = old._replace(mode=mode)
        subtract(resource.held, old)
        resource.held[mode] = resource.held.get(mode, 0) + 1
        if resource.converting:
            resource.converting = ""
        claim.places = (new,)
        claim.wants = ""
        if mode == EXCLUSIVE:
            session = self.session_to_change(claim.session)
            before = mix(claim.n, claim.token)
            claim.token = self.next_token(claim.block)
            session.checksum = (session.checksum + mix(claim.n, claim.token) - before) % MODULUS
        if not CONFLICTS[mode].isdisjoint(resource.reserved):
            self._cancel_reservations(resource)
        self.put(claim)
        self.log("converted", new, claim)

    def await_conversion(self, claim: Claim, resource: ResourceRow, mode: str) -> None:
        """Queue a conversion ahead of all waiting claims; the holder keeps its granted mode."""
        claim.wants = mode
        resource.converting = r.claim_ref(claim.session, claim.n)
        self._cancel_reservations(resource)
        self.put(claim)
        self.log("converting", claim.places[0], claim, mode)
        self._tell_retaining(resource)

    # ── looking ──────────────────────────────────────────────────────────────────────

    def view(self, claim: Claim) -> Granted | Queued | Gone:
        """Return the state of a claim."""
        if claim.state == HOLDING and not claim.wants:
            return self.granted(claim)
        if claim.state == REVOKED:
            return Gone(claim.reason, claim.by)
        blockers, over_ms = self.ahead_of(claim)
        return Queued(blockers, max(1, over_ms - self.now_ms))

    def granted(self, claim: Claim) -> Granted:
        mode = claim.places[0].mode if len(claim.places) == 1 else ""
        wanted = claim.block > 1 and any(
            resource.waiting or resource.converting
            for resource in (self.resource(place.kind, place.name) for place in claim.places)
        )
        return Granted(claim.token, self.now_ms - claim.granted_ms, mode, wanted)

    def ahead_of(self, claim: Claim) -> tuple[tuple[Blocker, ...], int]:
        """Return the claims directly ahead, and the time until they expire if not renewed."""
        found: list[Claim] = []
        over_ms = FAR_MS
        for i, place in enumerate(claim.places):
            if claim.passed >> i & 1:
                continue
            resource = self.resource(place.kind, place.name)
            if resource.closed_ms:  # if in the past, it is open but not settled yet
                over_ms = min(over_ms, resource.closed_ms)
            prefix = r.line_prefix("w", *place[:2])
            before = (
                self.rows.scan(prefix, prefix + claim.rank, 1, reverse=True)
                if resource.waiting and claim.state == WAITING
                else []
            )
            if before:
                found.append(self.claim_by_ref(before[0][1]))
                continue
            found += self.holders(resource)
            if resource.reservations and claim.state == WAITING:
                prefix = r.line_prefix("v", *place[:2])
                reserved = self.rows.scan(prefix, prefix + claim.rank, BLOCKERS_MAX)
                found += [self.claim_by_ref(ref) for _, ref in reserved]
        blockers: list[Blocker] = []
        seen = {(claim.session, claim.n)}
        for other in found:
            if (other.session, other.n) in seen or len(blockers) == BLOCKERS_MAX:
                continue
            seen.add((other.session, other.n))
            session = self.session(other.session)
            assert session is not None
            over_ms = min(over_ms, session.deadline_ms, other.until_ms or FAR_MS)
            held = other.state == HOLDING
            since_ms = other.granted_ms if held else other.entered_ms
            blockers.append(
                Blocker(
                    other.session,
                    other.n,
                    session.owner,
                    session.process,
                    session.renewals,
                    held,
                    other.token,
                    self.now_ms - since_ms,
                )
            )
        return tuple(blockers), over_ms

    def _head(self, at: Place | ResourceRow) -> tuple[str, str] | None:
        """Return rank and claim of the first waiter for a resource."""
        line = self._line("w", at, 1)
        return line[0] if line else None

    def _line(self, line: str, at: Place | ResourceRow, limit: int) -> list[tuple[str, str]]:
        """Return ranks and claims of one queue of a resource, in order."""
        prefix = r.line_prefix(line, at.kind, at.name)
        cut = len(prefix)
        found = self.rows.scan(prefix, r.after_prefix(prefix), limit)
        return [(key[cut:], ref) for key, ref in found]


def share(place: Place) -> int:
    """Return how much a holder counts: a permit its weight, anything else one."""
    return place.weight if place.mode == PERMIT else 1


def subtract(counts: dict[str, int], place: Place) -> None:
    left = counts[place.mode] - share(place)
    if left:
        counts[place.mode] = left
    else:
        del counts[place.mode]


def place_at(claim: Claim, resource: ResourceRow) -> Place:
    for place in claim.places:
        if place.name == resource.name and place.kind == resource.kind:
            return place
    raise AssertionError(f"claim {claim.n} of {claim.session} has no place at {resource.name!r}")


def fits(place: Place, limit: int, *counts: dict[str, int]) -> bool:
    """Return True if a place is compatible with all counted holders and reservations."""
    conflicts = CONFLICTS[place.mode]
    for modes in counts:
        if modes and not conflicts.isdisjoint(modes):
            return False
    if place.mode == PERMIT:
        taken = sum(modes.get(PERMIT, 0) for modes in counts)
        return taken + place.weight <= limit
    return True
