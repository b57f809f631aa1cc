"""The short paths of enter and leave store exactly the same bytes as the general paths."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis

from lockfast.conformance.commands import PROFILES, Commands, Profile
from lockfast.core import commands as c
from lockfast.sim.promises import NOTHING, snapshot
from lockfast.stores.redis.scripts import keys_of
from tests.redis.stepping import ScriptSteps
from tests.servers.redis import RedisServer

STEPS = 250
SEEDS = range(6)
MODES = ("exclusive", "shared", "update")
CHOICES = tuple((c.Place("lock", name, mode),) for name in "abcdefgh" for mode in MODES)
EVERYTHING = PROFILES["everything"]
WEIGHTS = {**EVERYTHING.weights, "leave": 30, "watch": 0}
MOSTLY_FREE = Profile("mostly free", CHOICES, WEIGHTS)
MIXED = Profile("mixed", CHOICES + EVERYTHING.choices, WEIGHTS)
HANDED_OVER = Profile(
    "handed over",
    tuple((c.Place("lock", name, "exclusive"),) for name in "ab"),
    {**dict.fromkeys(WEIGHTS, 0.2), "enter": 30, "leave": 30, "renew": 5, "open": 6, "watch": 0},
)


@pytest.fixture
def make_steps(server: RedisServer) -> Iterator[Callable[[bool], ScriptSteps]]:
    made: list[ScriptSteps] = []

    def make(watched: bool) -> ScriptSteps:
        made.append(ScriptSteps(server.url(), watched=watched))
        return made[-1]

    yield make
    for steps in made:
        steps.close()


def state_of(client: Any, steps: ScriptSteps) -> tuple[Any, ...]:
    """Return everything stored, except the log and its expiry."""
    rows, order, due, _ = keys_of(steps.namespace)
    fields: dict[bytes, bytes] = client.hgetall(rows)
    counters = fields.pop(b"m", b"")[:26]
    return fields, counters, client.zrange(order, 0, -1), client.zrange(due, 0, -1, withscores=True)


@pytest.mark.parametrize("profile", [MOSTLY_FREE, MIXED, HANDED_OVER], ids=lambda p: p.name)
@pytest.mark.parametrize("seed", SEEDS)
def test_the_short_way_leaves_what_the_long_way_does(
    server: RedisServer, make_steps: Callable[[bool], ScriptSteps], seed: int, profile: Profile
) -> None:
    """Short paths are used only while nobody watches, and must make no visible difference."""
    client = redis.Redis(unix_socket_path=str(server.socket))
    long, short = make_steps(True), make_steps(False)
    commands = Commands(seed, profile)
    seen = NOTHING
    nothing = commands.next(seen)._replace(command=c.Close("nobody"))
    assert short.apply(*nothing) == long.apply(*nothing)  # writes the counters
    for _ in range(STEPS):
        step = commands.next(seen)
        if isinstance(step.command, c.Events):
            continue
        if isinstance(step.command, c.Enter) and step.command.n % 3:
            # As plain as most claims are.
            plain = c.Enter(*step.command[:5], open=step.command.open)
            step = step._replace(command=plain)
        assert short.apply(*step) == long.apply(*step), f"seed {seed}: {step}"
        assert state_of(client, short) == state_of(client, long), f"seed {seed}: {step}"
        seen = snapshot(long, *step[1:], seen)
    client.close()
    assert long.shortcuts == 0
    assert short.shortcuts > 5
    assert (short.hand_overs > 0 and short.lined_up > 0) or profile is not HANDED_OVER


LINE = 6
A, B = ((c.Place("lock", name, "exclusive"),) for name in "ab")
UNUSUAL = {
    "priority": c.Enter("", 1, A, "", priority=1, head_start_ms=10),
    "max_hold": c.Enter("", 1, A, "", max_hold_ms=60_000),
    "lock_delay": c.Enter("", 1, A, "", lock_delay_ms=1000),
    "retained": c.Enter("", 1, A, "", block=16),
    "value": c.Enter("", 1, A, "", value="v"),
    "reader": c.Enter("", 1, (c.Place("lock", "a", "shared"),), ""),
    "two locks": c.Enter("", 1, A + B, ""),
}


@pytest.mark.parametrize("unusual", [None, *UNUSUAL])
@pytest.mark.parametrize("at", range(LINE))
def test_a_line_is_handed_over_as_on_the_long_way(
    server: RedisServer,
    make_steps: Callable[[bool], ScriptSteps],
    at: int,
    unusual: str | None,
) -> None:
    """The claims get the lock one after the other; unusual claims take the general path."""
    client = redis.Redis(unix_socket_path=str(server.socket))
    long, short = make_steps(True), make_steps(False)
    now_ms = 1_700_000_000_000

    def both(command: c.Command) -> None:
        nonlocal now_ms
        now_ms += 7
        step = command, now_ms, now_ms * 1000 + 3
        assert short.apply(*step) == long.apply(*step), command
        assert state_of(client, short) == state_of(client, long), command

    sessions = [f"{i:016x}" for i in range(LINE)]
    tries = 0

    def try_it() -> None:
        nonlocal tries
        tries += 1
        both(c.Enter("who does not wait", tries, A, "", queue=False))

    places: list[tuple[c.Place, ...]] = [A] * LINE
    both(c.Close("nobody"))  # writes the counters
    for i, session in enumerate(sessions):
        both(c.Open(session, 600_000, "owner", inbox=f"inbox of {i}" if i != 2 else ""))
    both(c.Open("who does not wait", 700_000, "owner", process="of it"))
    for i, session in enumerate(sessions):
        enter = c.Enter(session, 1, A, f"actor {i}")
        if unusual is not None and i == at:
            enter = UNUSUAL[unusual]._replace(session=session, actor=f"actor {i}")
        places[i] = enter.places
        both(enter)
        try_it()
    both(c.Enter(sessions[-1], 2, A, "of a session that stands in line already"))
    both(c.Enter(sessions[-1], 3, B, "who has another lock as well"))
    for i, session in enumerate(sessions):
        both(c.Leave(session, 1, places[i]))
        try_it()
    both(c.Leave(sessions[-1], 2, A))
    client.close()
    if unusual is None:
        assert short.hand_overs == LINE  # the last grant goes to another claim of its own session
        assert short.lined_up == LINE + tries
    assert (long.hand_overs, long.lined_up, long.shortcuts) == (0, 0, 0)
