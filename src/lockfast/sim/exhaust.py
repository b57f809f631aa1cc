"""Every interleaving of a small world: the lock table beside its model, state by state.

Three clients and two locks, and a handful of commands each of them may have on its way: first
sends, repeats, late ones. From each state every command is tried and time may pass; states that
look alike in every answer are visited once. Every answer and every wake is compared, and in each
new state all that can be seen of the locks.

A million states do not fit into memory with all their rows. Of a state only the way to it is
kept, a byte for each step, and it is made again from the state before it, which was made for its
siblings too.
"""

from __future__ import annotations

import time
from array import array
from collections.abc import Callable, Hashable, Iterator
from typing import Final, NamedTuple

from lockfast.core import commands as c
from lockfast.core.table import Table
from lockfast.sim.forks import ForkRows, fork_model
from lockfast.sim.model import COMPATIBLE, Model

TTL_MS: Final = 30
TICKS_MS: Final = (1, TTL_MS)
CLIENTS: Final = ("s1", "s2", "s3")
NAMES: Final = ("a", "b")
WALL_US: Final = 1_700_000_000_000_000
_TIME_PASSES: Final[c.Command] = c.Renew("nobody")
"""Only a command can show that time has passed: the passing of time changes no visible state."""


class Exhausted(NamedTuple):
    """How far the search got, and what it found."""

    states: int
    steps: int
    depth: int
    """Every state within this many steps of the start was visited."""
    complete: bool
    """Every reachable state was visited."""
    cpu_s: float
    problem: str = ""
    path: tuple[str, ...] = ()

    def __str__(self) -> str:
        seen = (
            f"{self.states:,} states, {self.steps:,} steps, all up to depth {self.depth}, "
            f"{self.states / max(self.cpu_s, 1e-9):,.0f} states per second of CPU time"
        )
        if not self.problem:
            return f"{seen}: table and model agree, and the promises hold"
        way = "\n  ".join(self.path)
        return f"{seen}\nFAILED {self.problem}\n  {way}"


def _place(name: str, mode: str) -> c.Place:
    return c.Place("lock", name, mode)


def _commands() -> Iterator[c.Command | int]:
    """Return every command that may arrive next; a number advances the clock."""
    both = (_place("a", "exclusive"), _place("b", "exclusive"))
    asks = {
        "s1": ((_place("a", "exclusive"),), both),
        "s2": ((_place("a", "shared"),), (_place("b", "exclusive"),)),
        "s3": ((_place("a", "exclusive"),), (_place("a", "shared"),)),
    }
    for session in CLIENTS:
        opening = c.Open(session, TTL_MS, session, inbox=session)
        for n, places in enumerate(asks[session], 1):
            yield c.Enter(session, n, places, queue=(session, n) != ("s3", 2), open=opening)
            yield c.Leave(session, n, places)
        yield c.Renew(session)
    yield c.Convert("s2", 1, 1, "exclusive")
    yield c.Close("s1")
    yield c.Revoke("s3", 1, "admin", "why not")
    yield from TICKS_MS


COMMANDS: Final = tuple(_commands())


class _State(NamedTuple):
    """A table and its model after the same steps."""

    rows: ForkRows
    model: Model
    now_ms: int


class _Step(NamedTuple):
    state: _State
    key: Hashable
    """Return the key that identifies the state."""
    problem: str


def _take(state: _State, step: c.Command | int) -> _Step:
    """Apply one step and compare the table with its model."""
    rows, model = state.rows.fork(), fork_model(state.model)
    passed_ms, command = (step, _TIME_PASSES) if isinstance(step, int) else (0, step)
    now_ms = state.now_ms + passed_ms
    wall_us = WALL_US + now_ms * 1000
    reply, wakes = Table(rows).apply(command, now_ms, wall_us)
    expected, expected_wakes = model.apply(command, now_ms, wall_us)
    model.log.clear()
    problem = ""
    if _plain(reply) != _plain(expected):
        problem = f"the table says {reply}, the model {expected}"
    elif _told(wakes) != _told(expected_wakes):
        problem = f"the table wakes {wakes}, the model {expected_wakes}"
    # Include the model's own state: if it diverged from the table, that is a new state.
    key = (rows.key(now_ms), _key_of(model))
    return _Step(_State(rows, model, now_ms), key, problem)


def _key_of(model: Model) -> Hashable:
    return tuple(
        (claim.asked.session, claim.asked.n, claim.state, claim.places, claim.wants)
        for claim in model.claims
    )


def _differs(state: _State) -> str:
    """Return what is wrong with the visible state, or an empty string."""
    for name in NAMES:
        view = _view(Table(state.rows), name, state.now_ms)
        seen = _view(fork_model(state.model), name, state.now_ms)
        problem = _compare(view, seen) or _incompatible(view)
        if problem:
            return problem
    return ""


def _view(store: Table | Model, name: str, now_ms: int) -> c.ResourceView:
    view, _ = store.apply(c.Inspect("lock", name), now_ms, 0)
    assert isinstance(view, c.ResourceView)
    return view


def _compare(view: c.ResourceView, expected: c.ResourceView) -> str:
    for what in ("holders", "waiting"):
        mine, theirs = (
            [(claim.session, claim.n, claim.places, claim.wants) for claim in getattr(v, what)]
            for v in (view, expected)
        )
        if (sorted(mine) if what == "holders" else mine) != (
            sorted(theirs) if what == "holders" else theirs
        ):
            return f"{what} of {view.name!r}: {mine} in the table, {theirs} in the model"
    return ""


def _incompatible(view: c.ResourceView) -> str:
    modes = [
        (claim, place.mode)
        for claim in view.holders
        for place in claim.places
        if place.name == view.name
    ]
    for i, (one, mode) in enumerate(modes):
        for other, beside in modes[:i]:
            if (mode, beside) not in COMPATIBLE:
                return f"{one[:2]} holds {view.name!r} {mode} beside {other[:2]} {beside}"
    return ""


def _plain(reply: c.Reply) -> Hashable:
    """Return a reply without what may differ: token numbers and the order of blockers."""
    if isinstance(reply, c.Queued | c.Busy):
        return type(reply).__name__, tuple(sorted(blocker[:2] for blocker in reply.ahead))
    if isinstance(reply, c.Granted):
        return "Granted", reply.mode, reply.for_ms
    if isinstance(reply, c.Refused):
        return "Refused", reply.why
    if isinstance(reply, c.Renewed):
        return "Renewed", reply.matches, tuple((n, _plain(look)) for n, look in reply.looks)
    return type(reply).__name__, reply


def _told(wakes: list[c.Wake]) -> list[tuple[str, int, str]]:
    """Return the recipients of wakes; a hint to look again is optional."""
    return sorted((wake.session, wake.n, wake.what) for wake in wakes if wake.what != c.WAKE_LOOK)


class _Ways:
    """For every visited state, its predecessor and the step that led from there."""

    def __init__(self) -> None:
        self._before = array("I", [0])
        self._step = array("B", [0])
        self._depth = array("B", [0])
        self._made: list[tuple[int, _State]] = [(0, _State(ForkRows(), Model(), 0))]
        """The most recently rebuilt state at each depth."""

    def __len__(self) -> int:
        return len(self._before)

    def add(self, before: int, step: int) -> None:
        self._before.append(before)
        self._step.append(step)
        self._depth.append(self._depth[before] + 1)

    def depth(self, number: int) -> int:
        return self._depth[number]

    def make(self, number: int) -> _State:
        """Rebuild a state. Siblings follow each other, so usually one step suffices."""
        depth = self._depth[number]
        if depth < len(self._made) and self._made[depth][0] == number:
            return self._made[depth][1]
        state = _take(self.make(self._before[number]), COMMANDS[self._step[number]]).state
        del self._made[depth:]
        self._made.append((number, state))
        return state

    def told(self, number: int, last: c.Command | int) -> tuple[str, ...]:
        """Return the path to a step from this state, for people."""
        steps = [last]
        while number:
            steps.append(COMMANDS[self._step[number]])
            number = self._before[number]
        return tuple(
            f"{step} ms pass" if isinstance(step, int) else repr(step) for step in reversed(steps)
        )


def exhaust(states_max: int, progress: Callable[[int], None] | None = None) -> Exhausted:
    """Search breadth first, so that the first problem found has a shortest path."""
    began = time.process_time()
    ways = _Ways()
    seen: set[int] = set()
    at = steps = 0
    while at < len(ways) and len(seen) < states_max:
        state = ways.make(at)
        for i, command in enumerate(COMMANDS):
            steps += 1
            after, key, problem = _take(state, command)
            # Store a hash instead of the key, to save memory. A collision skips one state; it is
            # very rare.
            known = hash(key)
            if known not in seen:
                seen.add(known)
                ways.add(at, i)
                problem = problem or _differs(after)
            if problem:
                spent = time.process_time() - began
                way = ways.told(at, command)
                return Exhausted(len(seen), steps, ways.depth(at), False, spent, problem, way)
        at += 1
        if progress is not None:
            progress(len(seen))
    complete = at >= len(ways)
    depth = ways.depth(min(at, len(ways) - 1))
    spent = time.process_time() - began
    return Exhausted(len(seen), steps, depth, complete, spent)
