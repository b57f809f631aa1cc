"""Compare a store with a reference, step by step, on random commands.

To test your own store, implement `apply(command, now_ms, wall_us)` for it and call

    compare(MyStore, Model, seed=7, steps=200)

This sends both the same commands (contended, repeated, late, out of order, with clocks that
jump), compares every reply and all readable state after each, and checks each promise on the
store alone. A failing script is shrunk until no command can be removed.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

from lockfast.core import commands as c
from lockfast.sim.model import checksum_of
from lockfast.sim.promises import NOTHING, ClaimId, Promises, Snapshot, Step, Steps, snapshot

TRUTH = -1
"""A placeholder for the count of a Renew: fill in the values of the store that receives it."""

SHRINKS_MAX = 1500


class MismatchError(AssertionError):
    """The store and its reference disagree, or the store broke a promise."""


# ── what to ask for ──────────────────────────────────────────────────────────────────


class Profile(NamedTuple):
    """A workload: the places that claims request, and the weight of each command."""

    name: str
    choices: tuple[tuple[c.Place, ...], ...]
    weights: Mapping[str, float]


def _lock(name: str, *modes: str) -> list[c.Place]:
    return [c.Place("lock", name, mode) for mode in modes]


def _permit(name: str, weight: int, limit: int) -> c.Place:
    return c.Place("semaphore", name, "permit", weight, limit)


def _branch(name: str, mode: str) -> tuple[c.Place, ...]:
    """Return the places of a tree lock: an intention on each ancestor, then the node."""
    intent = "intent_exclusive" if mode == "exclusive" else "intent_shared"
    parts = name.split("/")
    above = ("/".join(parts[:i]) for i in range(1, len(parts)))
    return (*(c.Place("tree", ancestor, intent) for ancestor in above), c.Place("tree", name, mode))


_WEIGHTS: Mapping[str, float] = {
    "enter": 30,
    "leave": 16,
    "renew": 10,
    "open": 4,
    "convert": 3,
    "break": 3,
    "revoke": 2,
    "resize": 1,
    "proclaim": 1,
    "adopt": 1,
    "watch": 1,
    "close": 0.7,
    "expel": 0.7,
    "revoke_session": 0.5,
    "read": 6,
}
_MODES = ("exclusive", "shared", "update")
_EXCLUSIVE = tuple((place,) for place in _lock("a", "exclusive"))
_READERS = tuple((place,) for place in _lock("a", *_MODES, *["shared"] * 9))
_MORE_READERS = tuple((place,) for place in _lock("b", *_MODES))
_TREE = tuple(
    _branch(name, mode)
    for name in ("t", "t/x", "t/y", "t/x/1", "t/x/2")
    for mode in ("exclusive", "shared")
)
_PERMITS = tuple((_permit("p", weight, 4),) for weight in (1, 1, 2, 3, 4)) + tuple(
    (_permit("q", weight, 2),) for weight in (1, 2)
)
_SEVERAL = (
    *((one, other) for one in _lock("a", *_MODES) for other in _lock("b", *_MODES)),
    *((place,) for place in _lock("a", *_MODES, "shared")),
    *((place,) for place in _lock("b", "exclusive", "shared")),
    *((_permit("p", weight, 4),) for weight in (1, 2, 3)),
    (_permit("p", 1, 4), c.Place("lock", "a", "update")),
    (_permit("p", 2, 4), c.Place("lock", "a", "exclusive")),
    (_permit("p", 3, 4), c.Place("lock", "b", "shared")),
    (_permit("p", 1, 4), c.Place("lock", "b", "exclusive"), c.Place("lock", "a", "shared")),
)
_OTHERS = (
    (c.Place("election", "e", "exclusive"),),
    (c.Place("party", "g", "shared"),),
    (c.Place("once", "o", "exclusive"),),
)

PROFILES = {
    profile.name: profile
    for profile in (
        Profile("exclusive", _EXCLUSIVE, _WEIGHTS),
        # Waiting conversions and their deadlocks are rare, so raise their weights.
        Profile(
            "readers and writers",
            _READERS + _MORE_READERS,
            {**_WEIGHTS, "convert": 20, "break": 12},
        ),
        Profile("tree", _TREE, _WEIGHTS),
        Profile("permits", _PERMITS, {**_WEIGHTS, "resize": 4}),
        Profile("several at once", _SEVERAL, {**_WEIGHTS, "convert": 8, "break": 6, "resize": 3}),
        Profile("everything", _READERS + _TREE + _PERMITS + _SEVERAL + _OTHERS * 5, _WEIGHTS),
    )
}

_FOOLISH: tuple[tuple[c.Place, ...], ...] = (
    (),
    (c.Place("lock", "a", "permit"),),
    (c.Place("tree", "t", "update"),),
    (c.Place("nothing", "a", "exclusive"),),
    (_permit("p", 5, 4),),
    (_permit("p", 0, 4),),
    (_permit("p", 1, 3),),
    (c.Place("lock", "a", "shared"), c.Place("lock", "a", "exclusive")),
    tuple(c.Place("lock", name, "shared") for name in "abcdefgh"),
)


class Commands:
    """An endless, seeded stream of commands; each may depend on the store's visible state."""

    def __init__(self, seed: int, profile: Profile | None = None) -> None:
        self._random = random.Random(seed)
        self.profile = profile or list(PROFILES.values())[seed % len(PROFILES)]
        self._now_ms = self._random.choice((0, 1_000_000, 1_700_000_000_000))
        self._wall_base_us = self._random.choice((0, 1_700_000_000_000_000))
        self._skew_us = 0
        self._lives = [0, 0, 0, 0]
        self._numbers: dict[str, int] = {}
        self._late: list[c.Command] = []
        self._sent: list[c.Command] = []
        self._seen = NOTHING

    def next(self, seen: Snapshot) -> Step:
        """Return the next command, with the clock readings at its arrival."""
        self._seen = seen
        chance = self._random.random
        self._tick()
        if seen.due_ms() <= self._now_ms and chance() < 0.6:
            # A command without effect isolates the effect of the clock.
            command: c.Command = c.Expel("nobody", "so that time passes")
        elif self._late and chance() < 0.15:
            command = self._late.pop(self._random.randrange(len(self._late)))
        elif self._sent and chance() < 0.06:
            command = self._random.choice(self._sent[-30:])
        else:
            command = self._new()
            if chance() < 0.04:
                self._late.append(command)
                command = self._new()
        self._sent.append(command)
        wall_us = max(0, self._wall_base_us + self._now_ms * 1000 + self._skew_us)
        return Step(command, self._now_ms, wall_us)

    def _tick(self) -> None:
        chance = self._random.random()
        if chance < 0.001:
            self._now_ms += 600_001
        elif chance < 0.006:
            self._now_ms += self._random.randrange(300, 3000)
        elif chance < 0.06:
            self._now_ms += self._random.randrange(10, 120)
        elif chance < 0.6:
            self._now_ms += self._random.randrange(1, 5)
        if self._random.random() < 0.03:
            self._skew_us = self._random.randrange(-5_000_000, 5_000_000)

    def _new(self) -> c.Command:
        weights = self.profile.weights
        what = self._random.choices(list(weights), list(weights.values()))[0]
        command: c.Command = getattr(self, f"_{what}")()
        return command

    # ── sessions ─────────────────────────────────────────────────────────────────────

    def _session(self) -> str:
        i = self._random.randrange(len(self._lives))
        life = self._lives[i]
        if self._random.random() < 0.03:
            life = self._random.randrange(life + 2)
        session = f"s{i}.{life}"
        view = self._seen.sessions.get(session)
        if view is not None and view.ended and self._random.random() < 0.8:
            self._lives[i] += 1
            session = f"s{i}.{self._lives[i]}"
        return session

    def _open(self, session: str = "") -> c.Open:
        session = session or self._session()
        return c.Open(
            session,
            self._random.choice((150, 600, 2000)),
            f"owner of {session}",
            metadata=self._random.choice(("", "m")) * self._random.choice((1, 1, 1, 1, 70)),
            inbox=f"inbox of {session}",
            process=self._random.choice(("", "pid 1")),
        )

    def _watch(self) -> c.Watch:
        return c.Watch(self._session(), self._random.random() < 0.7)

    def _renew(self) -> c.Renew:
        session = self._session()
        numbers = [n for owner, n in self._seen.claims if owner == session]
        waiting = [n for n in numbers if self._random.random() < 0.5]
        if self._random.random() < 0.1:
            waiting.append(self._random.randrange(1, 9))
        lowest = min(numbers, default=self._numbers.get(session, 0) + 1)
        return c.Renew(
            session,
            count=TRUTH if self._random.random() < 0.8 else self._random.randrange(3),
            checksum=self._random.choice((0, 0, 0, 1)),
            lowest=lowest if self._random.random() < 0.3 else 0,
            waiting=tuple(waiting),
        )

    def _close(self) -> c.Close:
        return c.Close(self._session())

    def _expel(self) -> c.Expel:
        session = self._session()
        view = self._seen.sessions.get(session)
        renewals = view.renewals if view is not None else 0
        return c.Expel(session, "silent", self._random.choice((None, renewals, renewals - 1)))

    def _revoke_session(self) -> c.RevokeSession:
        return c.RevokeSession(self._session(), "admin", "make room")

    # ── claims ───────────────────────────────────────────────────────────────────────

    def _enter(self) -> c.Enter:
        session = self._session()
        chance = self._random.random
        view = self._seen.sessions.get(session)
        rides = view is None or chance() < 0.03
        n = self._numbers.get(session, 0) + 1
        if chance() < 0.06:
            n += self._random.randrange(1, 4)
            self._late.append(self._claim_of(session, n - 1))
        if chance() < 0.04:
            n = self._random.randrange(n + 1)
        self._numbers[session] = max(n, self._numbers.get(session, 0))
        command = self._claim_of(session, n)
        return command._replace(open=self._open(session)) if rides else command

    def _claim_of(self, session: str, n: int) -> c.Enter:
        chance, choice = self._random.random, self._random.choice
        places = list(choice(self.profile.choices))
        if chance() < 0.02:
            places = list(choice(_FOOLISH))
        self._random.shuffle(places)
        # A window is for claims with one place; among claims with several, the result would
        # depend on the order in which a store settles its queues.
        alone = all(len(places) == 1 for places in self.profile.choices)
        once = [place.kind for place in places] == ["once"]
        window_ms = choice((0, 0, 0, 0, 10)) if alone else choice((0, 30)) if once else 0
        actor, queue = choice(("", "task")), chance() < 0.8
        if chance() < 0.3:
            # Most real claims use no options, and stores have fast paths for them.
            return c.Enter(session, n, tuple(places), actor, queue)
        return c.Enter(
            session,
            n,
            tuple(places),
            actor,
            queue,
            priority=choice((0, 1)),
            head_start_ms=choice((0, 0, 0, 0, 2, 10, 200, 200, -10)),
            max_hold_ms=choice((0, 0, 0, 0, 5, 40)),
            lock_delay_ms=choice((0, 0, 0, 0, 0, 20)),
            block=choice((1, 1, 1, 5)),
            value=choice((None, None, None, "v", "v" * 70 if chance() < 0.1 else "w")),
            window_ms=window_ms,
        )

    def _some_claim(self, holding: bool | None = None) -> ClaimId:
        found = [
            of
            for of, claim in self._seen.claims.items()
            if holding is None or (claim.state == "holding") == holding
        ]
        if not found or self._random.random() < 0.05:
            session = self._session()
            return session, self._random.randrange(1, self._numbers.get(session, 0) + 3)
        return self._random.choice(found)

    def _leave(self) -> c.Leave:
        session, n = self._some_claim()
        close_ms = self._random.choice((5, 50)) if self._random.random() < 0.05 else 0
        return c.Leave(session, n, close_ms=close_ms)

    def _convert(self) -> c.Convert:
        locks = [
            of
            for of, claim in self._seen.holding().items()
            if claim.places[0].kind == "lock" and len(claim.places) == 1
        ]
        usual = locks and self._random.random() < 0.9
        of = self._random.choice(locks) if usual else self._some_claim(holding=True)
        steps = [
            sent.step
            for sent in self._sent
            if isinstance(sent, c.Convert) and (sent.session, sent.n) == of
        ]
        step = max(steps, default=0) + self._random.choice((1, 1, 1, 1, 0, -1))
        mode = self._random.choice(("exclusive", *_MODES))
        if self._random.random() < 0.02:
            mode = "permit"
        return c.Convert(*of, step, mode, queue=self._random.random() < 0.7)

    def _proclaim(self) -> c.Proclaim:
        return c.Proclaim(*self._some_claim(), self._random.choice(("w", "w" * 70)))

    def _adopt(self) -> c.Adopt:
        return c.Adopt(*self._some_claim(), self._random.choice(("", "other task")))

    def _revoke(self) -> c.Revoke:
        return c.Revoke(*self._some_claim(), "admin", "make room")

    def _resize(self) -> c.Resize:
        kind = "semaphore" if self._random.random() < 0.9 else "lock"
        name = self._random.choice("pq") if kind == "semaphore" else "a"
        return c.Resize(kind, name, self._random.randrange(0, 7))

    def _break(self) -> c.Break:
        chance, choice = self._random.random, self._random.choice
        converting = [of for of, claim in self._seen.claims.items() if claim.wants]
        if converting and chance() < 0.7:
            of = choice(converting)
        else:
            of = self._some_claim(holding=False if chance() < 0.8 else None)
        others = list(self._seen.claims.items())
        self._random.shuffle(others)
        witnesses = [
            c.Witness(*other, (claim.state == "holding" and not claim.wants) == (chance() < 0.95))
            for other, claim in others[: self._random.randrange(4)]
        ]
        ahead_of = None
        # A converting claim is in no queue, so it can only be cancelled.
        if chance() < (0.1 if of in converting else 0.6):
            claim = self._seen.claims.get(of)
            line = [
                waiter[:2]
                for place in (claim.places if claim is not None else ())
                for waiter in self._seen.resources[place[:2]].waiting
            ]
            ahead_of = choice(line) if line and chance() < 0.9 else self._some_claim()
        return c.Break(*of, tuple(witnesses), ahead_of, "a cycle")

    # ── reading ──────────────────────────────────────────────────────────────────────

    def _read(self) -> c.Command:
        randrange, choice = self._random.randrange, self._random.choice
        kind, name = choice(list(self._seen.resources) or [("lock", "a")])
        return choice(
            (
                c.Look(*self._some_claim()),
                c.Claims(self._session()),
                c.Inspect(kind, name, choice((1, 100))),
                c.Listing(kind, choice(("", name[:1], name)), choice(("", name)), choice((1, 100))),
                c.Sessions(choice(("", self._session())), choice((1, 100))),
                c.Events(choice((None, randrange(self._seen.position + 1))), choice((1, 500))),
            )
        )


# ── comparing ────────────────────────────────────────────────────────────────────────

MakeSteps: TypeAlias = Callable[[], Steps]


class Outcome(NamedTuple):
    """The final state of a comparison without mismatch."""

    subject: Steps
    script: Sequence[Step]
    replies: Mapping[str, int]
    """How often each kind of reply occurred, to check the coverage."""


def compare(
    make_subject: MakeSteps,
    make_reference: MakeSteps,
    seed: int,
    steps: int,
    *,
    profile: Profile | None = None,
) -> Outcome:
    """Send both the same random commands and compare them after each.

    Raises MismatchError with the seed and the shortest script that still fails.
    """
    commands = Commands(seed, profile)
    pair = _Pair(make_subject(), make_reference())
    script: list[Step] = []
    try:
        for _ in range(steps):
            script.append(commands.next(pair.seen))
            pair.take(script[-1])
    except Exception as error:
        kind = _kind(error)

        def fails(shorter: Sequence[Step]) -> bool:
            return _kind(_failure(make_subject, make_reference, shorter)) == kind

        shortest = shrink(script, fails)
        shown = "\n".join(f"    {step!r}," for step in shortest)
        why = _failure(make_subject, make_reference, shortest) or error
        raise MismatchError(
            f"seed {seed} ({commands.profile.name}), step {len(script)}: {error!r}\n"
            f"the shortest script that fails: {why!r}\n{shown}"
        ) from error
    return Outcome(pair.subject, script, pair.replies)


def replay(make_subject: MakeSteps, make_reference: MakeSteps, script: Iterable[Step]) -> None:
    """Run a recorded script. Raises as `compare` did, but does not shrink the script."""
    pair = _Pair(make_subject(), make_reference())
    for step in script:
        pair.take(step)


def _failure(
    make_subject: MakeSteps, make_reference: MakeSteps, script: Sequence[Step]
) -> Exception | None:
    try:
        replay(make_subject, make_reference, script)
    except Exception as error:
        return error
    return None


def _kind(error: Exception | None) -> str:
    """Classify a failure, so that shrinking does not end at a different one."""
    return re.split("[:(]", f"{type(error).__name__} {error}", maxsplit=1)[0]


def shrink(script: Sequence[Step], fails: Callable[[Sequence[Step]], bool]) -> Sequence[Step]:
    """Remove ever smaller pieces of the script while it still fails."""
    tries = 0
    size = max(1, len(script) // 2)
    while True:
        at, found = 0, False
        while at < len(script) and tries < SHRINKS_MAX:
            shorter = [*script[:at], *script[at + size :]]
            tries += 1
            if fails(shorter):
                script, found = shorter, True
            else:
                at += size
        if tries >= SHRINKS_MAX or (size == 1 and not found):
            return script
        size = max(1, size // 2)


class _Labels:
    """Replaces tokens by symbolic names: the k-th token of a claim. Within one step, stores may
    number the grants of different queues in any order; the promises check the real numbers."""

    def __init__(self) -> None:
        self._labels: dict[int, tuple[object, ...]] = {}
        self._counts: dict[ClaimId, int] = {}

    def learn(self, seen: Snapshot) -> None:
        for event in seen.events:
            if event.token and event.token not in self._labels:
                of = (event.session, event.n)
                self._counts[of] = count = self._counts.get(of, 0) + 1
                self._labels[event.token] = (*of, count)

    def plain(self, value: object) -> Any:
        """Return a value without the details in which two correct stores may differ."""
        if isinstance(value, c.Refused) and value.why in _WORDED_FREELY:
            return value._replace(detail="")
        if isinstance(value, c.EventsReply):
            return len(value.events), value[1:]
        if isinstance(value, c.Queued | c.Busy):
            return type(value).__name__, sorted(map(self.plain, value.ahead)), value[1:]
        if isinstance(value, c.ResourceView):
            value = value._replace(holders=tuple(sorted(value.holders)))
        if isinstance(value, c.Event):
            # If a session and a claim expire at the same time, either may be ended first.
            detail = "" if value.what == "expired" else value.detail
            value = value._replace(position=0, detail=detail)
        if isinstance(value, dict):
            return {key: self.plain(item) for key, item in value.items()}
        if not isinstance(value, tuple):
            return value
        names = getattr(value, "_fields", ("",) * len(value))
        return (
            type(value).__name__,
            *(
                (self._labels.get(item, item) if item else item)
                if name == "token"
                else self.plain(item)
                for name, item in zip(names, value, strict=True)
            ),
        )


_WORDED_FREELY = (c.WHY_FINISHED, c.WHY_INVALID, c.WHY_CLAIMS_FULL)


class _Pair:
    """A store and its reference, run in lockstep."""

    def __init__(self, subject: Steps, reference: Steps) -> None:
        self.subject = subject
        self.reference = reference
        self.seen = NOTHING
        self.replies: dict[str, int] = {}
        self._expected = NOTHING
        self._kinds: dict[str, None] = {}
        self._promises = Promises()
        self._labels = _Labels()
        self._expected_labels = _Labels()

    def take(self, step: Step) -> None:
        """Execute one step on both and compare the results and all readable state."""
        mine = _truthful(step, self.subject)
        reply, wakes = self.subject.apply(*mine)
        theirs = _truthful(step, self.reference)
        expected, expected_wakes = self.reference.apply(*theirs)
        if isinstance(step.command, c.Enter):
            self._kinds.update(dict.fromkeys(place.kind for place in step.command.places))
        before = self.seen
        self.seen = after = snapshot(self.subject, *step[1:], before, self._kinds)
        self._promises.check(mine, reply, wakes, before, after)
        self._expected = model = snapshot(self.reference, *step[1:], self._expected, self._kinds)
        self._labels.learn(after)
        self._expected_labels.learn(model)
        self._same(f"answer to {mine.command}", reply, expected)
        for part in ("sessions", "claims", "resources", "looks", "position"):
            self._same(part, getattr(after, part), getattr(model, part))
        self._same_bag("events", after.events, model.events)
        self._same_bag("wakes", _sure(wakes), _sure(expected_wakes))
        hints = {wake[1:3] for wake in wakes}
        for wake in expected_wakes:
            if wake[1:3] not in hints:
                raise MismatchError(f"{wake} is missing from {wakes}")
        kind = type(reply).__name__
        self.replies[kind] = self.replies.get(kind, 0) + 1

    def _same(self, what: str, found: object, expected: object) -> None:
        if found != expected:
            plain, wanted = self._labels.plain(found), self._expected_labels.plain(expected)
            if plain != wanted:
                raise MismatchError(f"{what}: {found}, expected {expected}")

    def _same_bag(self, what: str, found: Sequence[object], expected: Sequence[object]) -> None:
        if found != expected:
            plain = sorted(map(self._labels.plain, found), key=repr)
            if plain != sorted(map(self._expected_labels.plain, expected), key=repr):
                raise MismatchError(f"{what}: {found}, expected {expected}")


def _sure(wakes: Iterable[c.Wake]) -> list[c.Wake]:
    """Return the wakes without `look` hints, of which a store may send more than necessary."""
    return [wake for wake in wakes if wake.what not in (c.WAKE_LOOK, c.WAKE_WANTED)]


def _truthful(step: Step, store: Steps) -> Step:
    """Fill in the count and checksum of a keep-alive, as its client would."""
    command = step.command
    if not isinstance(command, c.Renew) or command.count != TRUTH:
        return step
    reply, _ = store.apply(c.Claims(command.session), step.now_ms, step.wall_us)
    claims = [
        (claim.n, claim.token)
        for claim in (reply.claims if isinstance(reply, c.ClaimsReply) else ())
        if claim.state != "revoked"
    ]
    checksum = checksum_of(claims) + command.checksum
    return step._replace(command=command._replace(count=len(claims), checksum=checksum))
