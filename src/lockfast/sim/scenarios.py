"""Scenarios: small worlds in which one thing goes wrong, and what prevents the damage.

Each scenario is a function over a stage. `zombie` without its guard ends badly, on purpose.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from lockfast.core.commands import Place
from lockfast.errors import LockfastError, OutcomeUnknownError, StaleTokenError
from lockfast.sim.checker import Problem, check_exclusion, check_register, check_tokens, grants_of
from lockfast.sim.client import SimClient, SimLease
from lockfast.sim.majority import MajorityClient, Node
from lockfast.sim.mix import Mix
from lockfast.sim.runtime import MS
from lockfast.sim.world import Run, World

LOCK = Place("lock", "orders/42", "exclusive")


class Scenario(NamedTuple):
    """A scenario: what happens, for how long, and what it promises."""

    name: str
    summary: str
    play: Callable[[Stage], Coroutine[Any, Any, None]]
    mix: Mix
    exclusive: bool = True
    """Exclusion is promised, because the store does not lose acknowledged writes."""


class Stage:
    """The world of a scenario, with helpers to narrate it."""

    def __init__(self, world: World) -> None:
        self.world = world

    @property
    def clients(self) -> list[SimClient]:
        return self.world.clients

    def at(self, ms: float, action: Callable[[], None]) -> None:
        self.world.later(int(ms * MS), action)

    def pause(self, client: SimClient, from_ms: float, to_ms: float) -> None:
        """Suspend everything on a host for a while; its clock continues."""

        def stop() -> None:
            self.world.note_fault("pause", client.name)
            client.host.pause()

        self.at(from_ms, stop)
        self.at(to_ms, lambda: self.world.resume(client))

    async def sleep(self, client: SimClient, ms: float) -> None:
        await client.host.sleep(ms)

    async def write(self, client: SimClient, lease: SimLease, think_ms: float = 5) -> bool:
        """Increment the protected value. Return False if the guard refused the write."""
        register, ttl_ms = self.world.register, self.world.ttl_ms
        try:
            value = await register.read(client.host, lease.name, lease.token, ttl_ms)
            await client.host.sleep(think_ms)
            await register.write(client.host, lease.name, lease.token, value + 1, ttl_ms)
        except StaleTokenError:
            return False
        except OutcomeUnknownError:
            return True
        return True

    async def turn(self, client: SimClient, think_ms: float = 5, **how: Any) -> bool:
        """Acquire the lock, write, release it."""
        lease = await client.acquire(LOCK, **how)
        if lease is None:
            return False
        done = await self.write(client, lease, think_ms)
        await client.release(lease)
        return done

    async def turn_after(
        self, client: SimClient, after_ms: float, think_ms: float, **how: Any
    ) -> None:
        """As `turn`, after a delay."""
        await self.sleep(client, after_ms)
        await self.turn(client, think_ms, **how)

    async def together(self, *jobs: tuple[SimClient, Coroutine[Any, Any, Any]]) -> None:
        """Run each task on its own host until all have ended or died."""
        tasks = [client.host.start(job, client.name) for client, job in jobs]
        director = self.world.director
        for task in tasks:
            while not task.done:
                signal = director.signal()
                task.on_done(signal.set)
                await signal.wait(None)


def _mix(clients: int = 3, ttl_ms: int = 1000, **settings: Any) -> Mix:
    return Mix({"turns": {}}, clients=clients, ttl_ms=ttl_ms, chaos_ms=60_000, **settings)


_ALL: list[Scenario] = []


def _scenario(
    summary: str, mix: Mix | None = None, *, exclusive: bool = True
) -> Callable[[Callable[[Stage], Coroutine[Any, Any, None]]], None]:
    def enter(play: Callable[[Stage], Coroutine[Any, Any, None]]) -> None:
        name = play.__name__.replace("_", "-")
        _ALL.append(Scenario(name, summary, play, mix or _mix(), exclusive))

    return enter


@_scenario("Three clients take turns: each waits for the one before it.")
async def turns(stage: Stage) -> None:
    async def work(client: SimClient) -> None:
        for _ in range(3):
            await stage.turn(client, 20)

    await stage.together(*((client, work(client)) for client in stage.clients))


@_scenario("A holder dies; its lease ends by itself and the next goes on.")
async def crash(stage: Stage) -> None:
    first, second, third = stage.clients

    async def dies() -> None:
        await first.acquire(LOCK)
        await stage.sleep(first, 60_000)

    def die() -> None:
        stage.world.note_fault("crash", first.name)
        first.die()

    stage.at(200, die)
    waits = ((client, stage.turn_after(client, 50, 20)) for client in (second, third))
    await stage.together((first, dies()), *waits)


@_scenario("A holder sleeps past its lease and wakes up to write: the zombie.", _mix(2))
async def zombie(stage: Stage) -> None:
    slow, quick = stage.clients
    register, ttl_ms = stage.world.register, stage.world.ttl_ms

    async def sleeps() -> None:
        lease = await slow.acquire(LOCK)
        assert lease is not None
        value = await register.read(slow.host, lease.name, lease.token, ttl_ms)
        await stage.sleep(slow, 20)
        # Like most programs, it does not check its lease before it writes.
        try:
            await register.write(slow.host, lease.name, lease.token, value + 1, ttl_ms)
        except StaleTokenError:
            pass
        await slow.release(lease)

    stage.pause(slow, 10, 2500)
    await stage.together((slow, sleeps()), (quick, stage.turn_after(quick, 100, 20)))


@_scenario("A holder sleeps past its lease, looks at it before it writes, and asks anew.", _mix(2))
async def pause(stage: Stage) -> None:
    slow, quick = stage.clients

    async def looks() -> None:
        lease = await slow.acquire(LOCK)
        assert lease is not None
        await stage.sleep(slow, 20)
        if lease.held():
            await stage.write(slow, lease)
            await slow.release(lease)
        else:
            await stage.turn(slow, 20)

    stage.pause(slow, 10, 2500)
    await stage.together((slow, looks()), (quick, stage.turn_after(quick, 100, 20)))


@_scenario(
    "The store forgets everything: two hold at once, and only the guard tells them apart.",
    _mix(2),
    exclusive=False,
)
async def split_brain(stage: Stage) -> None:
    one, other = stage.clients
    server = stage.world.server

    def forget() -> None:
        stage.world.note_fault("amnesia", server.host.name)
        server.forget_all()

    stage.at(50, forget)
    await stage.together(
        (one, stage.turn_after(one, 0, 300)), (other, stage.turn_after(other, 80, 100))
    )


@_scenario("Somebody sets the store's wall clock back: tokens still rise.", _mix(2))
async def clock_jump(stage: Stage) -> None:
    async def work(client: SimClient) -> None:
        for _ in range(3):
            await stage.turn(client, 30)

    def jump() -> None:
        stage.world.note_fault("wall_jump", stage.world.server.host.name)
        stage.world.server.host.clock.jump(-3_600_000_000)

    stage.at(60, jump)
    await stage.together(*((client, work(client)) for client in stage.clients))


@_scenario("The reply to an acquire is lost: asked again, it is the same claim.", _mix(2))
async def lost_reply(stage: Stage) -> None:
    one, other = stage.clients
    network = stage.world.network

    def mend() -> None:
        network.reset = 0.0

    network.reset = 1.0
    stage.at(3, mend)
    stage.world.note_fault("reset after the effect", one.name)
    await stage.together((one, stage.turn(one, 20)), (other, stage.turn_after(other, 5, 20)))


@_scenario("Twenty want the lock at once: one is woken at a time, in order.", _mix(20))
async def thundering_herd(stage: Stage) -> None:
    await stage.together(*((client, stage.turn(client, 5)) for client in stage.clients))


@_scenario("Two wait for each other: one of them gives way.", _mix(2))
async def deadlock(stage: Stage) -> None:
    async def takes(client: SimClient, *names: str) -> None:
        outer = await client.acquire(Place("lock", names[0], "exclusive"))
        await stage.sleep(client, 30)
        inner = await client.acquire(Place("lock", names[1], "exclusive"))
        await stage.sleep(client, 30)
        for lease in (inner, outer):
            if lease is not None:
                await client.release(lease)

    one, other = stage.clients
    await stage.together((one, takes(one, "a", "b")), (other, takes(other, "b", "a")))


@_scenario("An urgent claim has a head start; a patient one is still served.", _mix(5))
async def priority(stage: Stage) -> None:
    jobs = [(0, 0), (10, 0), (15, 0), (20, 5), (25, 1)]
    await stage.together(
        *(
            (client, stage.turn_after(client, after_ms, 40, priority=priority))
            for client, (after_ms, priority) in zip(stage.clients, jobs, strict=True)
        )
    )


@_scenario(
    "The store fails over to a replica that lags behind: a grant is forgotten, another is made.",
    Mix({"turns": {}}, {"failover": {"times": 0, "lag_ms": 400}}, clients=2, ttl_ms=1000),
    exclusive=False,
)
async def failover(stage: Stage) -> None:
    one, other = stage.clients
    server = stage.world.server

    def die() -> None:
        stage.world.note_fault("failover", server.host.name)
        server.crash()

    stage.at(60, die)
    stage.at(110, stage.world.fail_over)
    await stage.together(
        (one, stage.turn_after(one, 20, 250)), (other, stage.turn_after(other, 130, 80))
    )


@_scenario("The TTL is shorter than the store is slow: leases are lost, nothing else.", _mix(2, 60))
async def ttl_too_short(stage: Stage) -> None:
    async def work(client: SimClient) -> None:
        for _ in range(3):
            try:
                await stage.turn(client, 80)
            except LockfastError:
                continue

    stage.world.network.delay_us = 120 * MS
    stage.world.note_fault("delay", "store")
    await stage.together(*((client, work(client)) for client in stage.clients))


@_scenario(
    "Five nodes know nothing of each other; whoever three accept holds, also when two are gone."
)
async def majority(stage: Stage) -> None:
    world = stage.world
    nodes = [Node(world, f"n{i}") for i in range(1, 6)]

    async def work(client: SimClient) -> None:
        takes = MajorityClient(world, client.host, nodes, LOCK)
        for _ in range(2):
            held = await takes.acquire()
            if held is None:
                continue
            with suppress(StaleTokenError, OutcomeUnknownError):
                value = await world.register.read(client.host, held.name, held.token, world.ttl_ms)
                await client.host.sleep(40)
                await world.register.write(
                    client.host, held.name, held.token, value + 1, world.ttl_ms
                )
            takes.release(held)

    first, second, third = nodes[:3]
    stage.at(20, first.crash)
    stage.at(60, second.crash)
    # A node that restarts empty refuses ballots until every lease that it forgot has expired. Until
    # then the other three or four nodes are still a majority.
    stage.at(100, lambda: first.restart(forgets=False))
    stage.at(110, lambda: second.restart(forgets=True))
    stage.at(130, third.crash)
    await stage.together(*((client, work(client)) for client in stage.clients))


SCENARIOS: dict[str, Scenario] = {scenario.name: scenario for scenario in _ALL}


def play(name: str, seed: int = 1, *, fenced: bool = True) -> tuple[Run, list[Problem]]:
    """Run a scenario; the problems are the promises that it broke."""
    scenario = SCENARIOS[name]
    mix = scenario.mix
    mix = Mix(
        mix.workloads,
        mix.faults,
        clients=mix.clients,
        ttl_ms=mix.ttl_ms,
        chaos_ms=mix.chaos_ms,
        fenced=fenced,
    )
    world = World(mix, seed)
    run = world.run_story(scenario.play(Stage(world)))
    grants = grants_of(run.entries)
    problems = list(run.problems)
    problems += check_tokens(grants)
    problems += check_register(run.entries)
    if scenario.exclusive:
        problems += check_exclusion(grants)
    return run, problems


def names() -> Sequence[str]:
    return list(SCENARIOS)
