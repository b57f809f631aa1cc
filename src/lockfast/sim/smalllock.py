"""A model of the lock of one name, for the search in `linear`: states and steps.

A state has the holders with their modes, the queue, the converting claim, the active uses of
retained claims, and the last token known to be granted. A step leads to a list of states: to none
if it contradicts the history, to several if the history does not say which claim was ahead.

The rule is that of the model: the front of the queue is the longest run from its head that is
compatible with the holders and with each other. A claim with one place holds as soon as it is in
the front; a claim with several places holds at some time while it is.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple, TypeAlias

from lockfast.sim.checker import FAR, STRENGTH
from lockfast.sim.model import COMPATIBLE

RANK_SLACK_US: Final = 3_000
"""A store ranks claims by whole milliseconds of its own clock."""
RANK_SLACK_SHARE: Final = 30
"""The rate of that clock may be off by one part in this many."""


@dataclass(slots=True)
class Claim:
    """What a claim requested at this name, and what the history says about it."""

    op: int
    mode: str
    weight: int = 1
    limit: int = 0
    head_start_us: int = 0
    several: bool = False
    """It need not hold as soon as it could here: it has other places too, or the name may be
    closed for a while."""
    token: int = 0
    """0 if unknown."""
    held_by: int = FAR
    """When its client received the grant, if it did."""
    entered: tuple[int, int] = (0, FAR)
    """The earliest and latest time at which it entered the queue."""
    granted: bool = False


class Step(NamedTuple):
    """Something that takes effect at one time, not before `start`, and by `end` if it must."""

    what: str
    """The name of a method of SmallLock."""
    op: int
    start: int
    end: int
    """FAR if it may never have happened."""
    mode: str = ""
    token: int = 0
    held_by: int = FAR
    """For a conversion: when its client received the grant."""


Holder: TypeAlias = tuple[int, str]


class State(NamedTuple):
    """The state at one time, for one order of steps."""

    holders: tuple[Holder, ...] = ()
    line: tuple[int, ...] = ()
    converting: tuple[int, str, int, int] | None = None
    """Operation, mode, token if known, and when its client received the grant."""
    using: tuple[int, ...] = ()
    """Retained claims in use."""
    last: int = 0
    """The highest token known to be granted."""


@dataclass
class SmallLock:
    """The rules. `claims` are by operation; retained claims have numbers of their own."""

    claims: Mapping[int, Claim]
    keeper_of: Mapping[int, int] = field(default_factory=dict)
    """The retained claim of each use."""

    def after(self, state: State, step: Step) -> Iterable[State]:
        """Return the states that a step may lead to."""
        found: Iterable[State] = getattr(self, step.what)(state, step)
        return found

    def bound(self, state: State) -> int:
        """Return the first time by which a client received a grant that the state lacks."""
        by = FAR
        for op in state.line:
            by = min(by, self.claims[op].held_by)
        if state.converting is not None:
            by = min(by, state.converting[3])
        return by

    # ── coming ───────────────────────────────────────────────────────────────────────

    def enter(self, state: State, step: Step) -> Iterator[State]:
        """The claim enters the queue, and holds if nothing blocks it."""
        for line in self._places_in_line(state.line, step.op):
            yield from self._settle(state._replace(line=line))

    def attempt(self, state: State, step: Step) -> Iterator[State]:
        """The claim is granted at once."""
        for after in self.enter(state, step):
            if self.claims[step.op].several:
                yield from self.hold(after, step)
            elif _holds(after, step.op):
                yield after

    def busy(self, state: State, step: Step) -> Iterator[State]:
        """The claim was not granted at once and did not wait; another name may be the reason."""
        untold = State(state.holders, state.line, state.converting)
        if self.claims[step.op].several or any(
            not _holds(after, step.op) for after in self.enter(untold, step)
        ):
            yield state

    def hold(self, state: State, step: Step) -> Iterator[State]:
        """A claim with several places now holds all of them."""
        if _holds(state, step.op):
            yield state
        elif step.op in state.line and state.converting is None:
            at = state.line.index(step.op)
            if self._is_in_front(state, at):
                line = state.line[:at] + state.line[at + 1 :]
                after = self._granted(state._replace(line=line), step.op)
                if after is not None:
                    yield from self._settle(after)

    # ── going ────────────────────────────────────────────────────────────────────────

    def leave(self, state: State, step: Step) -> Iterator[State]:
        """The claim is released or expires: a holder, or a waiting claim."""
        op = step.op
        if _holds(state, op):
            holders = tuple(holder for holder in state.holders if holder[0] != op)
            converting = state.converting
            if converting is not None and converting[0] == op:
                converting = None
            yield from self._settle(state._replace(holders=holders, converting=converting))
        elif op in state.line and not self.claims[op].granted:
            yield from self._settle(
                state._replace(line=tuple(other for other in state.line if other != op))
            )

    # ── changing ─────────────────────────────────────────────────────────────────────

    def convert(self, state: State, step: Step) -> Iterator[State]:
        """A holder requests another mode; requesting its own mode cancels a conversion."""
        old = next((mode for op, mode in state.holders if op == step.op), None)
        if old is None:
            return
        if state.converting is not None and state.converting[0] == step.op:
            state = state._replace(converting=None)
        if old == step.mode:
            yield from self._settle(state)
        elif STRENGTH[step.mode] < STRENGTH[old]:
            yield from self._settle(_with_mode(state, step.op, step.mode))
        elif self._may_upgrade(state, step.op, old):
            if step.mode == "update":
                yield from self._settle(_with_mode(state, step.op, step.mode))
            else:
                asked = (step.op, step.mode, step.token, step.held_by)
                yield from self._settle(state._replace(converting=asked))

    def convert_busy(self, state: State, step: Step) -> Iterator[State]:
        """The holder could not become exclusive at once, because others hold too."""
        if len(state.holders) != 1 or not _holds(state, step.op):
            yield state

    def _may_upgrade(self, state: State, op: int, old: str) -> bool:
        others = (mode for other, mode in state.holders if other != op)
        return state.converting is None and not (old == "shared" and "update" in others)

    # ── kept claims ──────────────────────────────────────────────────────────────────

    def keep(self, state: State, step: Step) -> Iterator[State]:
        """A client acquires a retained lock for its local users."""
        keeper = self.keeper_of[step.op]
        if keeper not in state.line and not _holds(state, keeper):
            yield from self._settle(state._replace(line=(*state.line, keeper)))

    def use(self, state: State, step: Step) -> Iterator[State]:
        """A local user is admitted, with the next token."""
        keeper = self.keeper_of[step.op]
        if _holds(state, keeper) and keeper not in state.using and step.token > state.last:
            using = tuple(sorted((*state.using, keeper)))
            yield state._replace(using=using, last=step.token)

    def unuse(self, state: State, step: Step) -> Iterator[State]:
        keeper = self.keeper_of[step.op]
        if keeper in state.using:
            yield state._replace(using=tuple(other for other in state.using if other != keeper))

    def give_up(self, state: State, step: Step) -> Iterator[State]:
        """The client releases a retained claim, or loses it."""
        keeper = self.keeper_of[step.op]
        if keeper not in state.using:
            yield from self.leave(state, step._replace(op=keeper))

    # ── who holds ────────────────────────────────────────────────────────────────────

    def _settle(self, state: State) -> Iterator[State]:
        """Settle the queue; yield nothing if tokens would decrease."""
        found = self._converted(state)
        if found is not None and found.converting is None:
            yield from self._let_in(found, 0)
        elif found is not None:
            yield found

    def _let_in(self, state: State, at: int) -> Iterator[State]:
        """Continue from a position in the queue; all claims before it are reserved."""
        if at >= len(state.line) or not self._is_in_front(state, at):
            yield state
            return
        op = state.line[at]
        after = self._granted(state._replace(line=state.line[:at] + state.line[at + 1 :]), op)
        if after is not None:
            yield from self._let_in(after, at)
        if self.claims[op].several:
            # Other queues decide as well whether it holds now or later.
            yield from self._let_in(state, at + 1)

    def _converted(self, state: State) -> State | None:
        if state.converting is None or len(state.holders) > 1:
            return state
        op, mode, token, _ = state.converting
        if token and token <= state.last:
            return None
        last = token or state.last
        return _with_mode(state, op, mode)._replace(converting=None, last=last)

    def _granted(self, state: State, op: int) -> State | None:
        claim = self.claims[op]
        if claim.token and claim.token <= state.last:
            return None
        holders = tuple(sorted((*state.holders, (op, claim.mode))))
        return state._replace(holders=holders, last=claim.token or state.last)

    def _is_in_front(self, state: State, at: int) -> bool:
        """Return True if the claim is compatible with the holders and those before it."""
        beside = [(mode, self.claims[op].weight) for op, mode in state.holders]
        for op in state.line[:at]:
            claim = self.claims[op]
            if not _fits(claim, beside):
                return False
            beside.append((claim.mode, claim.weight))
        return _fits(self.claims[state.line[at]], beside)

    def _places_in_line(self, line: tuple[int, ...], op: int) -> Iterator[tuple[int, ...]]:
        """Return where the claim may enter: at the tail, or where its head start puts it."""
        at = len(line)
        while True:
            if not any(self._passes(op, other, surely=True) for other in line[:at]):
                yield (*line[:at], op, *line[at:])
            at -= 1
            if at < 0 or not self._passes(op, line[at]):
                return

    def _passes(self, op: int, other: int, *, surely: bool = False) -> bool:
        mine, theirs = self.claims[op], self.claims[other]
        gain_us = mine.head_start_us - theirs.head_start_us
        if gain_us <= 0:
            return False
        slack_us = RANK_SLACK_US + gain_us // RANK_SLACK_SHARE
        if surely:
            return mine.entered[1] - theirs.entered[0] < gain_us - slack_us
        return mine.entered[0] - theirs.entered[1] < gain_us + slack_us


def _holds(state: State, op: int) -> bool:
    return any(holder[0] == op for holder in state.holders)


def _with_mode(state: State, op: int, mode: str) -> State:
    holders = tuple((other, mode if other == op else held) for other, held in state.holders)
    return state._replace(holders=holders)


def _fits(claim: Claim, beside: list[tuple[str, int]]) -> bool:
    if claim.mode == "permit":
        return sum(weight for _, weight in beside) + claim.weight <= claim.limit
    return all((claim.mode, mode) in COMPATIBLE for mode, _ in beside)
