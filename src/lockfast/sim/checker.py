"""Check a history: what clients requested, received and believed.

The checks use neither the lock table nor its model. Each returns the problems that it found, in
words that name the operations.

  check_leases     one exclusive lock: tokens and disjoint leases, in O(n log n)
  check_tokens     tokens of all grants: none twice, none that goes back
  check_exclusion  all modes and permits: no two clients believe that they hold conflicting locks
  check_order      no claim is overtaken by one that was sent after it was queued
  check_register   what the lock protects: no update lost, no stale write admitted
  check_windows    nothing is granted on a resource while it is closed
  check_liveness   after the faults have ended, locks with waiters are granted
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from operator import itemgetter
from typing import Final, NamedTuple, TypeAlias

from lockfast.core.commands import Place
from lockfast.sim.entries import HistoryError
from lockfast.sim.history import Entry
from lockfast.sim.model import COMPATIBLE

FAR: Final = 1 << 62
RATE_MAX: Final = 0.025
"""How much the rates of two clocks may differ."""

Lease: TypeAlias = tuple[int, int, int, int]
"""One grant: token, time of the request, of the reply, and of the end."""


class Problem(NamedTuple):
    """One broken promise."""

    check: str
    text: str
    ops: tuple[int, ...] = ()
    """Operations to mark in the timeline."""
    at: int = 0

    def __str__(self) -> str:
        return f"{self.check}: {self.text}"


@dataclass(slots=True)
class Conversion:
    """A conversion of a lease, from its request to its reply."""

    op: int
    mode: str
    asked: int
    waits: bool = True
    answered: int | None = None
    outcome: str = ""
    token: int = 0

    @property
    def granted(self) -> bool:
        return self.outcome == "granted"


@dataclass(slots=True)
class Grant:
    """An acquire, from its request to the end of its lease."""

    op: int
    by: str
    places: tuple[Place, ...]
    asked: int
    head_start: int = 0
    waits: bool = True
    timeout: int | None = None
    queued: int | None = None
    answered: int | None = None
    outcome: str = ""
    token: int = 0
    over: int = FAR
    why: str = ""
    claim: tuple[str, int] = ("", 0)
    until: int = FAR
    """The end of its max_hold."""
    revoked: int = FAR
    retained: bool = False
    closes: bool = False
    """The resource may be closed after it ends."""
    window: int = 0
    """From its grant on, the resource is closed for this many milliseconds."""
    conversions: list[Conversion] = field(default_factory=list)

    @property
    def granted(self) -> bool:
        return self.outcome == "granted"

    def __str__(self) -> str:
        names = "+".join(f"{place.name}:{place.mode}" for place in self.places)
        token = f" token {self.token}" if self.granted else f" {self.outcome or 'unanswered'}"
        return f"#{self.op} {self.by} {names}{token}"


def grants_of(entries: Iterable[Entry]) -> list[Grant]:
    """Return every acquire of a history, with its outcome.

    Raises HistoryError for a reply that precedes its request.
    """
    found: dict[int, Grant] = {}
    conversions: dict[int, Conversion] = {}
    asked: set[int] = set()
    revoked: dict[tuple[str, int], int] = {}
    lives: dict[str, int] = {}
    for entry in entries:
        if "got" in entry:
            op = entry["op"]
            if op in found:
                _take(found[op], entry)
            elif op in conversions:
                change = conversions[op]
                change.answered, change.outcome = entry["at"], entry["got"]
                change.token = entry.get("token", 0)
            elif op not in asked:
                raise HistoryError(f"operation {op} is answered before it is asked")
        elif "ask" in entry:
            op, what = entry["op"], entry["ask"]
            asked.add(op)
            if what == "acquire":
                found[op] = _asked(entry)
            elif what == "convert" and entry["of"] in found:
                change = Conversion(op, entry["mode"], entry["at"])
                change.waits = entry.get("wait", True)
                conversions[op] = change
                found[entry["of"]].conversions.append(change)
        elif "revoke" in entry:
            # If it was sent more than once, the first copy may have been executed.
            revoked.setdefault((entry["revoke"], entry["n"]), entry["at"])
        elif "lives" in entry:
            lives[entry["lives"]] = max(entry["until"], lives.get(entry["lives"], 0))
    for grant in found.values():
        _bound(grant, lives.get(grant.claim[0], FAR) if lives else FAR)
        # If an operator revoked it, it has ended although its holder does not know yet.
        for claim in (grant.claim, (grant.claim[0], 0)) if revoked else ():
            if claim in revoked and claim[0]:
                grant.revoked = min(grant.revoked, revoked[claim])
                grant.over = min(grant.over, max(revoked[claim], grant.answered or 0))
    return list(found.values())


def _asked(entry: Entry) -> Grant:
    places = entry["places"]
    if type(places[0]) is not Place:
        places = tuple(Place(*place) for place in places)
    return Grant(
        entry["op"],
        entry.get("by", ""),
        places,
        entry["at"],
        entry.get("head_start", 0),
        entry.get("wait", True),
        entry.get("timeout"),
        retained=entry.get("retained", False),
        closes=entry.get("closes", False),
        window=entry.get("window", 0),
    )


def _bound(grant: Grant, session_until: int) -> None:
    """Return when the holder stops relying on the lease: at its deadline at the latest."""
    until = session_until if session_until < grant.until else grant.until
    if grant.over > until and grant.granted:
        grant.over, grant.why = max(until, grant.answered or 0), "deadline"


def _take(grant: Grant, entry: Entry) -> None:
    what = entry["got"]
    if what == "queued":
        grant.queued = entry["at"]
    elif what == "entered":
        grant.queued = None
    elif what == "over":
        grant.over = entry["at"]
        grant.why = entry.get("why", "")
    else:
        grant.outcome = what
        grant.answered = entry["at"]
        if what == "granted":
            grant.token = entry["token"]
            grant.claim = (entry.get("session", ""), entry.get("n", 0))
            grant.until = entry.get("until", FAR)


STRENGTH: Final = {"shared": 0, "update": 1, "exclusive": 2}


def beliefs(grant: Grant) -> Iterator[tuple[int, int, tuple[Place, ...]]]:
    """Return the modes that the holder relies on, each from when until when.

    A stronger mode counts from the reply, a weaker one from the request.
    """
    assert grant.answered is not None
    since, places = grant.answered, grant.places
    for change in grant.conversions:
        stronger = STRENGTH[change.mode] > STRENGTH[places[0].mode]
        if stronger and not change.granted:
            continue
        at = (change.answered if stronger else change.asked) or 0
        if since < min(at, grant.over):
            yield since, min(at, grant.over), places
        since, places = max(since, at), (places[0]._replace(mode=change.mode),)
    if since < grant.over:
        yield since, grant.over, places


# ── one exclusive lock ───────────────────────────────────────────────────────────────


def check_leases(leases: list[Lease]) -> list[Problem]:
    """Sort and check the leases of one exclusive lock: disjoint, in the order of tokens."""
    leases.sort()
    problems: list[Problem] = []
    last, over_until = -1, -FAR
    for lease in leases:
        token, _, granted, over = lease
        if token == last:
            problems.append(Problem("tokens", f"token {token} was given twice", at=granted))
        if granted < over_until:
            problems.append(
                Problem(
                    "exclusion",
                    f"token {token} was granted at {granted}, its predecessor {last} "
                    f"was over at {over_until}",
                    at=granted,
                )
            )
        last = token
        if over > over_until:
            over_until = over
    earliest, higher = FAR, 0
    for token, asked, granted, _ in reversed(leases):
        if asked > earliest:
            problems.append(
                Problem("tokens", f"token {token} was asked for after {higher} was told", at=asked)
            )
        if granted < earliest:
            earliest, higher = granted, token
    return problems


# ── all of them ──────────────────────────────────────────────────────────────────────


def check_tokens(
    grants: Sequence[Grant], *, forgets: bool = False, per_name: bool = False
) -> Iterator[Problem]:
    """Check that no token occurs twice, and that tokens rise in the order of grants.

    With `per_name`, only among the grants of each name: independent nodes promise no more. The
    users of a retained lock share a block of tokens, which rise at their own name only. If the
    store forgets, or an operator revokes the lock, another client may be granted the name while
    tokens of the block are still in use; the guard refuses these.
    """
    if per_name:
        for name in dict.fromkeys(grant.places[0][:2] for grant in grants):
            yield from _rising([grant for grant in grants if grant.places[0][:2] == name])
        return
    yield from _rising([grant for grant in grants if not grant.retained])
    if forgets:
        return
    for name in dict.fromkeys(g.places[0][:2] for g in grants if g.retained):
        there = [grant for grant in grants if grant.places[0][:2] == name]
        yield from _rising([g for g in there if not g.retained or (g.answered or 0) < g.revoked])


def _rising(grants: Iterable[Grant]) -> Iterator[Problem]:
    held = [grant for grant in grants if grant.granted]
    # A conversion to exclusive is a new grant, with a new token.
    held += [
        Grant(c.op, g.by, g.places, c.asked, answered=c.answered, outcome="granted", token=c.token)
        for g in held
        for c in g.conversions
        if c.granted and c.mode == "exclusive"
    ]
    held.sort(key=lambda grant: grant.token)
    for grant in held:
        if grant.token > 0:
            break
        yield Problem("tokens", f"{grant} has no token", (grant.op,), grant.answered or 0)
    for one, other in pairwise(held):
        if one.token == other.token:
            yield Problem("tokens", f"{one} and {other} have one token", (one.op, other.op))
    first: Grant | None = None
    for grant in reversed(held):
        if first is not None and grant.asked > (first.answered or 0) and grant.token < first.token:
            text = f"{grant} was asked for at {grant.asked}, {first} was told at {first.answered}"
            yield Problem("tokens", text, (grant.op, first.op), grant.asked)
        if first is None or (grant.answered or 0) < (first.answered or 0):
            first = grant


def check_exclusion(
    grants: Sequence[Grant], resized: Mapping[str, int] | None = None
) -> Iterator[Problem]:
    """Check that no two clients believe at the same time that they hold conflicting locks.

    For semaphores that were `resized`, the highest limit counts: claims that were queued at
    the time had requested another one.
    """
    resized = resized or {}
    changes: dict[tuple[str, str], list[tuple[int, int, Grant, Place]]] = {}
    for grant in grants:
        if not grant.granted or grant.answered is None or grant.over <= grant.answered:
            continue
        spans = (
            beliefs(grant) if grant.conversions else ((grant.answered, grant.over, grant.places),)
        )
        for since, until, places in spans:
            for place in places:
                line = changes.setdefault((place.kind, place.name), [])
                line.append((since, 1, grant, place))
                line.append((until, 0, grant, place))
    for line in changes.values():
        # At the same time, ends come first: a lease does not include its end.
        line.sort(key=lambda change: change[:2])
        holding: dict[int, tuple[Grant, Place]] = {}
        for at, begins, grant, place in line:
            if not begins:
                holding.pop(grant.op, None)
                continue
            if place.name in resized:
                place = place._replace(limit=max(place.limit, resized[place.name]))
            yield from _beside(grant, place, holding, at)
            holding[grant.op] = (grant, place)


def resizes(entries: Iterable[Entry]) -> dict[str, int]:
    """Return the highest limit of each semaphore that was resized."""
    found: dict[str, int] = {}
    for entry in entries:
        if "resize" in entry:
            name = entry["resize"]
            found[name] = max(found.get(name, 0), entry.get("limit", FAR))
    return found


def _beside(
    grant: Grant, place: Place, holding: dict[int, tuple[Grant, Place]], at: int
) -> Iterator[Problem]:
    if place.mode == "permit":
        taken = place.weight + sum(other.weight for _, other in holding.values())
        if taken > place.limit:
            ops = (grant.op, *holding)
            yield Problem("exclusion", f"{taken} permits of {place.limit}: {grant}", ops, at)
        return
    for other, theirs in holding.values():
        if (place.mode, theirs.mode) not in COMPATIBLE:
            text = f"{grant} is told at {at} while {other} believes until {other.over}"
            yield Problem("exclusion", text, (grant.op, other.op), at)


def check_order(grants: Sequence[Grant]) -> Iterator[Problem]:
    """A claim that was queued before another was sent is granted first, unless that one has a
    head start.

    Users of a retained lock are left out: they queue locally, in front of the grant.
    """
    lines: dict[tuple[str, str], list[Grant]] = {}
    for grant in grants:
        if grant.granted and len(grant.places) == 1 and not grant.retained:
            lines.setdefault(grant.places[0][:2], []).append(grant)
    for line in lines.values():
        line.sort(key=lambda grant: -grant.token)
        passed: dict[int, Grant] = {}
        for grant in line:
            for head_start, other in passed.items():
                assert other.queued is not None
                if head_start >= grant.head_start and other.queued < grant.asked:
                    text = f"{grant}, asked for at {grant.asked}, came before {other}"
                    text += f", who stood in line at {other.queued}"
                    yield Problem("order", text, (grant.op, other.op), grant.asked)
            if grant.queued is not None:
                first = passed.get(grant.head_start)
                if first is None or first.queued is None or grant.queued < first.queued:
                    passed[grant.head_start] = grant


def check_windows(grants: Sequence[Grant], reboots: Sequence[int] = ()) -> Iterator[Problem]:
    """Check that nothing is granted on a resource that an earlier grant has closed.

    The embedded store measures windows by a clock that starts at boot, so a reboot ends them.
    """
    closed: dict[tuple[str, str], Grant] = {}
    for grant in sorted(grants, key=lambda grant: grant.token):
        if not grant.granted or not grant.window:
            continue
        at = grant.places[0][:2]
        former = closed.get(at)
        # The store granted it after the request was sent, and uses its own clock.
        span = (grant.answered or 0) - former.asked if former is not None else FAR
        rebooted = former is not None and any(
            former.asked <= reboot <= (grant.answered or 0) for reboot in reboots
        )
        if former is not None and span < former.window * 1000 * (1 - RATE_MAX) and not rebooted:
            text = f"{grant} was told {span} µs after {former} was asked for, "
            text += f"which closed {at[1]!r} for {former.window} ms"
            yield Problem("window", text, (grant.op, former.op), grant.answered or 0)
        closed[at] = grant


# ── what the lock protects ───────────────────────────────────────────────────────────


def check_register(entries: Iterable[Entry]) -> Iterator[Problem]:
    """Check that every admitted write adds one to the previous one, in the order of tokens."""
    last: dict[str, tuple[int, int]] = {}
    for entry in entries:
        if "op" in entry or "write" not in entry or not entry["admitted"]:
            continue
        name, token, value = entry["write"], entry["token"], entry["value"]
        former_token, former = last.get(name, (0, 0))
        if token < former_token:
            text = f"{entry['by']} wrote {name!r} with token {token} after {former_token}"
            yield Problem("register", text, at=entry["at"])
        if value != former + 1 and (token, value) != (former_token, former):
            text = f"{entry['by']} (token {token}) made {name!r} {value}, it was {former}"
            text += ": an update is lost"
            yield Problem("register", text, at=entry["at"])
        last[name] = (token, value)


# ── that it goes on ──────────────────────────────────────────────────────────────────


def check_liveness(
    entries: Sequence[Entry], grants: Sequence[Grant], within_us: int
) -> Iterator[Problem]:
    """Check that after the faults have ended, a lock with waiters is granted within `within_us`."""
    heals = [entry["at"] for entry in entries if "heal" in entry]
    if not heals or not entries:
        return
    healed, end = heals[-1], max(map(itemgetter("at"), entries))
    entered: dict[tuple[str, str], list[int]] = {}
    for grant in grants:
        if grant.granted and grant.answered is not None:
            for place in grant.places:
                entered.setdefault(place[:2], []).append(grant.answered)
    for times in entered.values():
        times.sort()
    for grant in grants:
        until = end if grant.answered is None else grant.answered
        since = max(grant.asked, healed)
        if until - since <= within_us or grant.timeout is not None:
            continue
        for place in grant.places:
            marks = [t for t in entered.get(place[:2], []) if since < t < until]
            for one, other in zip([since, *marks], [*marks, until], strict=True):
                if other - one > within_us:
                    text = f"{grant} waits at {place.name!r}, which nobody enters from {one} "
                    yield Problem("liveness", text + f"to {other}", (grant.op,), one)


# ── the whole ────────────────────────────────────────────────────────────────────────


def check_history(
    entries: Sequence[Entry],
    *,
    forgets: bool = False,
    fenced: bool = True,
    alive_us: int = 0,
    per_name: bool = False,
) -> list[Problem]:
    """Run all checks that the store's promises allow.

    With `forgets`, the store may lose acknowledged writes, so only tokens and the guarded
    register are checked; without `fenced`, not the register either. With `per_name`, tokens rise
    at each name alone.
    """
    grants = grants_of(entries)
    problems = list(check_tokens(grants, forgets=forgets, per_name=per_name))
    if not forgets:
        problems += check_exclusion(grants, resizes(entries))
        problems += check_order(grants)
        reboots = [entry["at"] for entry in entries if entry.get("fault") == "power_cut"]
        problems += check_windows(grants, reboots)
    if fenced:
        problems += check_register(entries)
    if alive_us:
        problems += check_liveness(entries, grants, alive_us)
    return problems


def leases_of(grants: Iterable[Grant]) -> dict[tuple[str, str], list[Lease]]:
    """Return the leases of each resource that is only held exclusively, for `check_leases`."""
    found: dict[tuple[str, str], list[Lease]] = {}
    mixed: set[tuple[str, str]] = set()
    for grant in grants:
        for place in grant.places:
            if place.mode != "exclusive":
                mixed.add(place[:2])
            elif grant.granted and grant.answered is not None:
                lease = (grant.token, grant.asked, grant.answered, grant.over)
                found.setdefault(place[:2], []).append(lease)
    return {at: leases for at, leases in found.items() if at not in mixed}
