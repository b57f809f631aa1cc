"""A majority of independent nodes: one holder and rising tokens, whatever a minority forgets."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import suppress
from unittest import mock

import pytest

from lockfast.core.commands import Place
from lockfast.errors import OutcomeUnknownError, StaleTokenError
from lockfast.sim import majority
from lockfast.sim.checker import (
    Problem,
    check_exclusion,
    check_register,
    check_tokens,
    grants_of,
)
from lockfast.sim.majority import MajorityClient, Node
from lockfast.sim.mix import Mix
from lockfast.sim.runtime import MS
from lockfast.sim.world import Run, World

FAULTS = ("delay", "loss", "double", "pause", "drift")
SEEDS = 200
CLIENTS, ROUNDS, NODES, CHAOS_MS = 4, 5, 5, 1500
PLACE = Place("lock", "a", "exclusive")


def schedule(seed: int) -> tuple[Run, list[Problem]]:
    """Clients contend while messages, clients, nodes and clocks fail."""
    rng = random.Random(seed)
    faults = {name: {} for name in rng.sample(FAULTS, 2)}  # type: dict[str, dict[str, object]]
    mix = Mix({"turns": {}}, faults, clients=CLIENTS, ttl_ms=400, chaos_ms=CHAOS_MS)
    world = World(mix, seed)
    nodes = [Node(world, f"n{i}") for i in range(1, NODES + 1)]
    for _ in range(rng.randrange(16)):
        world.later(rng.randrange(CHAOS_MS * MS), harm(world, rng, nodes))

    async def work(client: MajorityClient, own: random.Random) -> None:
        for _ in range(ROUNDS):
            await client.host.sleep(own.random() * 60)
            held = await client.acquire(tries=300)
            assert held is not None, "no majority in all that time"
            with suppress(StaleTokenError, OutcomeUnknownError):
                value = await world.register.read(client.host, held.name, held.token, 400)
                await client.host.sleep(own.random() * 60)
                await world.register.write(client.host, held.name, held.token, value + 1, 400)
            client.release(held)

    async def story() -> None:
        tasks = []
        for each in world.clients:
            client = MajorityClient(world, each.host, nodes, PLACE)
            tasks.append(each.host.start(work(client, random.Random(rng.random())), each.name))
        for task in tasks:
            await task.join()

    run = world.run_story(story())
    grants = grants_of(run.entries)
    problems = list(run.problems)
    problems += [*check_tokens(grants), *check_exclusion(grants), *check_register(run.entries)]
    return run, problems


def harm(world: World, rng: random.Random, nodes: list[Node]) -> Callable[[], None]:
    """Take a node down for a while, with or without its data, or pause it; cut a client off from
    it, or change a client's clock."""
    node, client = rng.choice(nodes), rng.choice(world.clients).name
    ahead_us = rng.randrange(-30_000, 30_000) * MS
    lasts, way = rng.randrange(2 * MS, rng.choice((20, 500)) * MS), rng.randrange(5)

    def begin() -> None:
        if way == 2 and not node.host.paused:
            node.host.pause()
            world.later(lasts, node.host.resume, undo=True)
        elif way == 3:
            world.network.cut(client, node.host.name)
            world.later(lasts, lambda: world.network.mend(client, node.host.name), undo=True)
        elif way == 4:
            world.hosts[client].clock.jump(ahead_us)
        elif way < 2 and not node.down:
            node.crash()
            world.later(lasts, lambda: node.restart(forgets=way == 0), undo=True)

    return begin


def test_there_is_one_holder_and_tokens_rise() -> None:
    for seed in range(SEEDS):
        run, problems = schedule(seed)
        assert problems == [], f"seed {seed}"
        granted = [entry for entry in run.entries if entry.get("got") == "granted"]
        assert len(granted) == CLIENTS * ROUNDS, f"seed {seed}"


def test_a_seed_gives_one_trace() -> None:
    assert schedule(5)[0].trace_hash() == schedule(5)[0].trace_hash()


def forgets_and_goes_on(self: Node, *, forgets: bool) -> None:
    self.down = False
    if forgets:
        self._highest = self._until_ms = 0


def gives_back_for_others(self: Node, ballot: int, by: str) -> None:
    if ballot >= self._highest:
        self._until_ms = 0


def accepts_any_ballot(self: Node, ballot: int, by: str) -> majority.Answer:
    now_ms, wall_us = self.host.clock.both()
    yes = now_ms >= self._until_ms
    if yes:
        self._highest, self._by, self._until_ms = ballot, by, now_ms + 400
    return majority.Answer(yes, 0, wall_us)


@pytest.mark.parametrize(
    ("owner", "name", "wrong"),
    [
        (MajorityClient, "enough", property(lambda self: len(self.nodes) // 2)),
        (Node, "restart", forgets_and_goes_on),
        (Node, "accept", accepts_any_ballot),
        (Node, "give_back", gives_back_for_others),
        (majority, "margin_ms", lambda ttl_ms: -ttl_ms // 10),
    ],
)
def test_a_mistake_in_it_is_found(owner: object, name: str, wrong: object) -> None:
    with mock.patch.object(owner, name, wrong):
        assert any(schedule(seed)[1] for seed in range(SEEDS))
