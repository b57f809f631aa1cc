"""The short ways through enter and leave do to the byte what the long ways do."""

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
SEEDS = range(12)
MODES = ("exclusive", "shared", "update")
CHOICES = tuple((c.Place("lock", name, mode),) for name in "abcdefgh" for mode in MODES)
EVERYTHING = PROFILES["everything"]
WEIGHTS = {**EVERYTHING.weights, "leave": 30, "watch": 0}
MOSTLY_FREE = Profile("mostly free", CHOICES, WEIGHTS)
MIXED = Profile("mixed", CHOICES + EVERYTHING.choices, WEIGHTS)


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
    """All that is stored, but for the log and until when it is kept."""
    rows, order, due, _ = keys_of(steps.namespace)
    fields: dict[bytes, bytes] = client.hgetall(rows)
    counters = fields.pop(b"m", b"")[:26]
    return fields, counters, client.zrange(order, 0, -1), client.zrange(due, 0, -1, withscores=True)


@pytest.mark.parametrize("seed", SEEDS)
def test_the_short_way_leaves_what_the_long_way_does(
    server: RedisServer, make_steps: Callable[[bool], ScriptSteps], seed: int
) -> None:
    """While somebody watches there are no short ways; else there are, and nobody can tell."""
    client = redis.Redis(unix_socket_path=str(server.socket))
    long, short = make_steps(True), make_steps(False)
    commands = Commands(seed, MIXED if seed % 3 == 0 else MOSTLY_FREE)
    seen = NOTHING
    nothing = commands.next(seen)._replace(command=c.Close("nobody"))
    assert short.apply(*nothing) == long.apply(*nothing)  # writes the counters
    for _ in range(STEPS):
        step = commands.next(seen)
        if isinstance(step.command, c.Events):
            continue
        if isinstance(step.command, c.Enter) and step.command.n % 3:
            # As plain as most are.
            plain = c.Enter(*step.command[:5], open=step.command.open)
            step = step._replace(command=plain)
        assert short.apply(*step) == long.apply(*step), f"seed {seed}: {step}"
        assert state_of(client, short) == state_of(client, long), f"seed {seed}: {step}"
        seen = snapshot(long, *step[1:], seen)
    client.close()
    assert long.shortcuts == 0
    assert short.shortcuts > 5
