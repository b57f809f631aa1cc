"""Every interleaving of a small world: the lock table beside its model, state by state.

Three clients and two locks, and a handful of commands each of them may have on its way: first
sends, repeats, late ones. From each state every command is tried and time may pass; states that
look alike in every answer are visited once. What is compared is what any command could show.
"""

from __future__ import annotations

import pickle
from collections import deque
from collections.abc import Hashable, Iterator
from typing import NamedTuple, TypeAlias

from lockfast.core import commands as c
from lockfast.core.memory_rows import MemoryRows
from lockfast.core.table import Table
from lockfast.sim.model import COMPATIBLE, Model

TTL_MS = 30
TICKS_MS = (1, TTL_MS)
CLIENTS = ("s1", "s2", "s3")
NAMES = ("a", "b")
WALL_US = 1_700_000_000_000_000


class Exhausted(NamedTuple):
    """How far the search came, and what it found."""

    states: int
    steps: int
    depth: int
    complete: bool
    """Every state up to `depth` was visited."""
    problem: str = ""
    path: tuple[str, ...] = ()

    def __str__(self) -> str:
        seen = f"{self.states:,} states, {self.steps:,} steps, depth {self.depth}"
        if not self.problem:
            return f"{seen}: table and model agree, and the promises hold"
        way = "\n  ".join(self.path)
        return f"{seen}\nFAILED {self.problem}\n  {way}"


def _place(name: str, mode: str) -> c.Place:
    return c.Place("lock", name, mode)


def _commands() -> Iterator[c.Command | int]:
    """All that may arrive next, whatever was sent before; a number lets time pass."""
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


Path: TypeAlias = "tuple[Path, c.Command | int] | None"
"""The way to a state, from its last step back."""


class _State(NamedTuple):
    """A table and its model after the same steps, put away as bytes."""

    stored: bytes
    now_ms: int
    depth: int
    path: Path


def _begin() -> _State:
    return _State(pickle.dumps((MemoryRows(), Model())), 0, 0, None)


def _take(state: _State, step: c.Command | int) -> tuple[_State, Hashable, str]:
    """One step further: the state, what tells it apart, and what is wrong with it."""
    rows, model = pickle.loads(state.stored)
    table = Table(rows)
    now_ms, problem = state.now_ms, ""
    if isinstance(step, int):
        # Time alone changes nothing that can be seen; some command must find it passed.
        now_ms += step
        step_taken: c.Command = c.Renew("nobody")
    else:
        step_taken = step
    wall_us = WALL_US + now_ms * 1000
    reply, wakes = table.apply(step_taken, now_ms, wall_us)
    expected, expected_wakes = model.apply(step_taken, now_ms, wall_us)
    if _plain(reply) != _plain(expected):
        problem = f"the table says {reply}, the model {expected}"
    elif _told(wakes) != _told(expected_wakes):
        problem = f"the table wakes {wakes}, the model {expected_wakes}"
    key: list[Hashable] = []
    tokens: dict[int, int] = {}
    for name in NAMES:
        view, seen = _view(table, name, now_ms), _view(model, name, now_ms)
        problem = problem or _compare(view, seen) or _incompatible(view)
        key.append(_claims(view, tokens))
    for session in CLIENTS:
        row = rows.get(f"s\x1f{session}")
        key.append(
            (row.ended, row.deadline_ms - now_ms, row.highest, row.unseen)
            if row is not None
            else None
        )
        for claim in (rows.get(f"c\x1f{session}\x1f{n:016x}") for n in (1, 2)):
            key.append((claim.state, claim.step, claim.wants) if claim is not None else None)
    rows._log.clear()
    model.log.clear()
    rank = {token: i for i, token in enumerate(sorted(tokens))}
    key.append(tuple(rank[token] for token in tokens))
    after = _State(pickle.dumps((rows, model), 5), now_ms, state.depth + 1, (state.path, step))
    return after, tuple(key), problem


def _view(store: Table | Model, name: str, now_ms: int) -> c.ResourceView:
    view, _ = store.apply(c.Inspect("lock", name), now_ms, 0)
    assert isinstance(view, c.ResourceView)
    return view


def _claims(view: c.ResourceView, tokens: dict[int, int]) -> Hashable:
    found = []
    for claim in (*view.holders, *view.waiting):
        if claim.token:
            tokens.setdefault(claim.token, len(tokens))
        found.append(
            (claim.session, claim.n, claim.state, claim.places, claim.wants, claim.left_ms)
        )
    return tuple(found)


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
    """An answer without what may differ: the numbers of tokens, the order of blockers."""
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
    """Who is told what; a hint to look again may be given or not."""
    return sorted((wake.session, wake.n, wake.what) for wake in wakes if wake.what != c.WAKE_LOOK)


def _steps_of(path: Path) -> tuple[str, ...]:
    steps: list[str] = []
    while path is not None:
        path, step = path
        steps.append(f"{step} ms pass" if isinstance(step, int) else repr(step))
    return tuple(reversed(steps))


def exhaust(states_max: int) -> Exhausted:
    """Breadth first, so the first problem found has a shortest way to it."""
    commands = list(_commands())
    seen: set[int] = set()
    todo = deque([_begin()])
    steps = depth = 0
    while todo:
        state = todo.popleft()
        depth = max(depth, state.depth)
        for command in commands:
            steps += 1
            after, key, problem = _take(state, command)
            if problem:
                path = _steps_of(after.path)
                return Exhausted(len(seen), steps, depth, False, problem, path)
            # The key itself would fill the memory; two keys with one hash are so rare that
            # they cost a state at most.
            known = hash(key)
            if known not in seen:
                seen.add(known)
                todo.append(after)
                if len(seen) >= states_max:
                    return Exhausted(len(seen), steps, depth, False)
    return Exhausted(len(seen), steps, depth, True)
