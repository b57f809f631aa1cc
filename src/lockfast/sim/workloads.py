"""Workloads: each is a coroutine for one client, with parameters from the mix.

A workload is an `async def` that takes a client, its own source of randomness and its parameters,
listed in WORKLOADS with their defaults. It acquires locks through the client, which records them.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Coroutine, Iterator, Mapping
from typing import Any, NamedTuple, TypeAlias

from lockfast.core.commands import Place
from lockfast.errors import LockfastError, OutcomeUnknownError, StaleTokenError
from lockfast.flow.admin import list_sessions, revoke_lock, revoke_session
from lockfast.flow.holding import Ask
from lockfast.flow.retained import RetainedLock
from lockfast.guards.admission import InvalidTokenError
from lockfast.sim.client import SimClient, SimLease
from lockfast.sim.runtime import Cancelled

Knobs: TypeAlias = Mapping[str, Any]
Work: TypeAlias = Callable[[SimClient, random.Random, Knobs], Coroutine[Any, Any, None]]


class Workload(NamedTuple):
    work: Work
    knobs: Knobs


def span_ms(rng: random.Random, knobs: Knobs, which: str) -> float:
    """Draw a span between the two bounds of a parameter, in milliseconds."""
    low, high = knobs[which]
    return low + rng.random() * (high - low)  # type: ignore[no-any-return]


def rounds(client: SimClient, knobs: Knobs) -> Iterator[None]:
    """Yield the configured number of rounds, and more until the world has had enough operations."""
    world = client.world
    done = 0
    while done < knobs["rounds"] or world.wants_more():
        # An operation that has begun usually leads to a release as well.
        world.rounds_begun += 1
        try:
            yield
        finally:
            world.rounds_begun -= 1
        done += 1


def think(client: SimClient, rng: random.Random, knobs: Knobs) -> Coroutine[Any, Any, None]:
    return client.host.sleep(span_ms(rng, knobs, "think_ms"))


def hold(
    client: SimClient, lease: SimLease, rng: random.Random, knobs: Knobs
) -> Coroutine[Any, Any, None]:
    return client.host.sleep(span_ms(rng, knobs, "hold_ms"))


def lock(rng: random.Random, knobs: Knobs, mode: str = "exclusive") -> Place:
    return Place("lock", "abcdefgh"[rng.randrange(knobs["names"])], mode)


async def turns(client: SimClient, rng: random.Random, knobs: Knobs) -> None:
    """Acquire a lock, increment the value it protects, release it."""
    for _ in rounds(client, knobs):
        await think(client, rng, knobs)
        lease = await client.acquire(lock(rng, knobs))
        if lease is not None:
            await add_one(client, lease, rng, knobs)
            await client.release(lease)


async def add_one(client: SimClient, lease: SimLease, rng: random.Random, knobs: Knobs) -> None:
    """Read, work, write back one more, without checking the lease, as careless programs do.

    As often as the parameter `writes` says; with 0, only hold the lock.
    """
    if knobs["writes"] < 1 and rng.random() >= knobs["writes"]:
        await hold(client, lease, rng, knobs)
        return
    register, ttl_ms = client.world.register, client.world.ttl_ms
    try:
        value = await register.read(client.host, lease.name, lease.token, ttl_ms)
        await hold(client, lease, rng, knobs)
        await register.write(client.host, lease.name, lease.token, value + 1, ttl_ms)
    except (StaleTokenError, InvalidTokenError, OutcomeUnknownError):
        return


async def impatient(client: SimClient, rng: random.Random, knobs: Knobs) -> None:
    """Try once, wait a little, or be cancelled while waiting."""
    for _ in rounds(client, knobs):
        await think(client, rng, knobs)
        way = rng.randrange(4)
        place = lock(rng, knobs)
        if way == 0:
            lease = await client.acquire(place, timeout_ms=0)
        elif way == 1:
            lease = await client.acquire(place, timeout_ms=1 + rng.randrange(80))
        elif way == 2:
            lease = await client.acquire(place)
        else:
            task = client.host.start(client.acquire(place), f"{client.name}-cancelled")
            client.host.kernel.after(rng.randrange(1, 60_000), task.cancel)
            try:
                lease = await task.join()
            except Cancelled:
                continue
        if lease is not None:
            await hold(client, lease, rng, knobs)
            await client.release(lease)


async def readers(client: SimClient, rng: random.Random, knobs: Knobs) -> None:
    """Mostly read, sometimes write, sometimes read in order to write."""
    for _ in rounds(client, knobs):
        await think(client, rng, knobs)
        mode = rng.choice(("shared", "shared", "shared", "exclusive", "update"))
        patience = rng.choice((None, None, None, 30, 0))
        lease = await client.acquire(lock(rng, knobs, mode), timeout_ms=patience)
        if lease is not None:
            await hold(client, lease, rng, knobs)
            await client.release(lease)


async def upgrades(client: SimClient, rng: random.Random, knobs: Knobs) -> None:
    """Read, upgrade to write, downgrade to read; of two upgrades at once, one is refused."""
    for _ in rounds(client, knobs):
        await think(client, rng, knobs)
        mode = rng.choice(("shared", "shared", "update", "update", "exclusive"))
        lease = await client.acquire(lock(rng, knobs, mode))
        if lease is None:
            continue
        await hold(client, lease, rng, knobs)
        if mode != "exclusive" and rng.random() < 0.6:
            patience = rng.choice((None, 20, 0)) if mode == "update" else rng.choice((20, 0))
            await client.convert(lease, "exclusive", patience)
            await hold(client, lease, rng, knobs)
        if lease.mode == "exclusive" and rng.random() < 0.5:
            await client.convert(lease, rng.choice(("shared", "update")))
            await hold(client, lease, rng, knobs)
        await client.release(lease)


async def permits(client: SimClient, rng: random.Random, knobs: Knobs) -> None:
    """Acquire some of a few permits."""
    limit = knobs["limit"]
    for _ in rounds(client, knobs):
        await think(client, rng, knobs)
        place = Place("semaphore", "p", "permit", rng.randrange(1, limit + 1), limit)
        lease = await client.acquire(place, timeout_ms=rng.choice((None, None, None, 40, 0)))
        if lease is not None:
            await hold(client, lease, rng, knobs)
            await client.release(lease)


async def several(client: SimClient, rng: random.Random, knobs: Knobs) -> None:
    """Acquire one to three locks in one step, in any order of names."""
    for _ in rounds(client, knobs):
        await think(client, rng, knobs)
        names = rng.sample("abcd", rng.randrange(1, 4))
        places = [Place("lock", name, rng.choice(("exclusive", "shared"))) for name in names]
        lease = await client.acquire(*places, timeout_ms=rng.choice((None, None, None, 50)))
        if lease is not None:
            await hold(client, lease, rng, knobs)
            await client.release(lease)


async def tree(client: SimClient, rng: random.Random, knobs: Knobs) -> None:
    """Lock a branch, with intention claims on all its ancestors."""
    for _ in rounds(client, knobs):
        await think(client, rng, knobs)
        path = rng.choice(("t", "t/x", "t/y", "t/x/1", "t/x/2"))
        mode = rng.choice(("exclusive", "shared"))
        parts = path.split("/")
        places = [
            Place("tree", "/".join(parts[:i]), f"intent_{mode}") for i in range(1, len(parts))
        ]
        lease = await client.acquire(*places, Place("tree", path, mode))
        if lease is not None:
            await hold(client, lease, rng, knobs)
            await client.release(lease)


async def priorities(client: SimClient, rng: random.Random, knobs: Knobs) -> None:
    """Acquire with different priorities; no claim starves."""
    for _ in rounds(client, knobs):
        await think(client, rng, knobs)
        lease = await client.acquire(lock(rng, knobs), priority=rng.choice((0, 0, 1, 5, -1)))
        if lease is not None:
            await add_one(client, lease, rng, knobs)
            await client.release(lease)


async def bounded(client: SimClient, rng: random.Random, knobs: Knobs) -> None:
    """Sometimes hold longer than max_hold allows."""
    for _ in rounds(client, knobs):
        await think(client, rng, knobs)
        lease = await client.acquire(lock(rng, knobs), max_hold_ms=rng.choice((0, 20, 60)))
        if lease is not None:
            await add_one(client, lease, rng, knobs)
            await client.release(lease)


async def many(client: SimClient, rng: random.Random, knobs: Knobs) -> None:
    """Run several tasks of one client in one session."""

    async def task(own: random.Random) -> None:
        for _ in rounds(client, knobs):
            await think(client, own, knobs)
            lease = await client.acquire(lock(own, knobs))
            if lease is not None:
                await add_one(client, lease, own, knobs)
                await client.release(lease)

    tasks = [
        client.host.start(task(random.Random(rng.getrandbits(64))), f"{client.name}-{i}")
        for i in range(knobs["tasks"])
    ]
    for each in tasks:
        await each.join()


async def comings_and_goings(client: SimClient, rng: random.Random, knobs: Knobs) -> None:
    """Acquire a lock, disconnect with or without releasing it, and connect again."""
    for _ in rounds(client, knobs):
        await think(client, rng, knobs)
        lease = await client.acquire(lock(rng, knobs), timeout_ms=rng.choice((None, 60)))
        if lease is not None:
            await hold(client, lease, rng, knobs)
            if rng.random() < 0.5:
                await client.release(lease)
                continue
        await client.core.close()
        client.connect()


async def nested(client: SimClient, rng: random.Random, knobs: Knobs) -> None:
    """Acquire one lock and then another, in any order, so that some clients deadlock.

    The second may have another TTL, and so belong to another session.
    """
    for _ in rounds(client, knobs):
        await think(client, rng, knobs)
        names = rng.sample(rng.choice(("ab", "abc", "abc")), 2)
        outer = await client.acquire(Place("lock", names[0], "exclusive"))
        if outer is None:
            continue
        await client.host.sleep(rng.random() * 10)
        inner = await client.acquire(
            Place("lock", names[1], rng.choice(("exclusive", "shared"))),
            ttl_ms=rng.choice((1, 2, 2, 2)) * client.world.ttl_ms,
        )
        if inner is not None:
            await hold(client, inner, rng, knobs)
            await client.release(inner)
        await client.release(outer)


async def long_holds(client: SimClient, rng: random.Random, knobs: Knobs) -> None:
    """Sometimes hold for longer than a TTL, so that everything depends on keep-alives."""
    long_round = rng.randrange(knobs["rounds"])
    for i, _ in enumerate(rounds(client, knobs)):
        await think(client, rng, knobs)
        lease = await client.acquire(lock(rng, knobs))
        if lease is None:
            continue
        span = span_ms(rng, knobs, "hold_ms") if i == long_round else 5
        until_ms = client.host.now_ms() + span
        while lease.held() and client.host.now_ms() < until_ms:
            await client.host.sleep(min(50, span))
        await client.release(lease)


async def meddling(client: SimClient, rng: random.Random, knobs: Knobs) -> None:
    """One client revokes locks of others; the others take turns."""
    if client.name != "c1":
        await turns(client, rng, knobs)
        return
    while client.world.wants_more():
        await think(client, rng, knobs)
        try:
            await revoke_lock(client.core, "lock", lock(rng, knobs).name, client.name, "meddling")
        except LockfastError:
            continue


async def kept(client: SimClient, rng: random.Random, knobs: Knobs) -> None:
    """Let tasks of one client share a lock that it retains until others want it."""
    place = Place("lock", "a", "exclusive")
    lock = RetainedLock(client.core, Ask((place,), client.world.ttl_ms), knobs["block"])

    async def task(own: random.Random) -> None:
        for _ in rounds(client, knobs):
            await think(client, own, knobs)
            taken = await client.acquire_retained(lock, place)
            if taken is not None:
                await hold(client, taken[0], own, knobs)
                await client.release_retained(lock, *taken)

    tasks = [
        client.host.start(task(random.Random(rng.getrandbits(64))), f"{client.name}-{i}")
        for i in range(2)
    ]
    for each in tasks:
        await each.join()


async def ttls(client: SimClient, rng: random.Random, knobs: Knobs) -> None:
    """Let claims of several TTLs wait in one queue, some of them with fractional seconds."""
    world_ms = client.world.ttl_ms
    for _ in rounds(client, knobs):
        await think(client, rng, knobs)
        ttl_ms = rng.choice((world_ms, world_ms + 333, 2 * world_ms))
        lease = await client.acquire(lock(rng, knobs), ttl_ms=ttl_ms)
        if lease is not None:
            await add_one(client, lease, rng, knobs)
            await client.release(lease)


async def crowd(client: SimClient, rng: random.Random, knobs: Knobs) -> None:
    """Let one session wait at very many names at once, while another client takes turns at them."""
    if client.name not in ("c1", "c2"):
        await turns(client, rng, {**_WRITING, **knobs})
        return

    async def task(number: int) -> None:
        lease = await client.acquire(Place("lock", f"n{number}", "exclusive"))
        if lease is not None:
            await hold(client, lease, rng, knobs)
            await client.release(lease)

    for _ in range(knobs["rounds"]):
        await think(client, rng, knobs)
        tasks = [client.host.start(task(i), f"{client.name}-{i}") for i in range(knobs["lines"])]
        for each in tasks:
            await each.join()


async def closing(client: SimClient, rng: random.Random, knobs: Knobs) -> None:
    """Close the client while its tasks acquire, and connect again."""

    async def task(own: random.Random) -> None:
        for _ in range(3):
            await think(client, own, knobs)
            lease = await client.acquire(lock(own, knobs))
            if lease is not None:
                await hold(client, lease, own, knobs)
                await client.release(lease)

    for _ in rounds(client, knobs):
        tasks = [
            client.host.start(task(random.Random(rng.getrandbits(64))), f"{client.name}-{i}")
            for i in range(knobs["tasks"])
        ]
        await client.host.sleep(span_ms(rng, knobs, "open_ms"))
        await client.core.close()
        for each in tasks:
            await each.join()
        client.connect()


async def ending(client: SimClient, rng: random.Random, knobs: Knobs) -> None:
    """One client revokes the sessions of others while their tasks acquire."""
    if client.name != "c1":
        await many(client, rng, knobs)
        return
    while client.world.wants_more():
        await think(client, rng, knobs)
        try:
            sessions = await list_sessions(client.core)
            if sessions:
                session = sessions[rng.randrange(len(sessions))].session
                await revoke_session(client.core, session, client.name, "ending")
        except LockfastError:
            continue


async def crossed_upgrades(client: SimClient, rng: random.Random, knobs: Knobs) -> None:
    """Read two locks and upgrade one: deadlocks that involve conversions."""
    for _ in rounds(client, knobs):
        await think(client, rng, knobs)
        names = rng.sample("ab", 2)
        outer = await client.acquire(Place("lock", names[0], rng.choice(("shared", "update"))))
        if outer is None:
            continue
        inner = await client.acquire(
            Place("lock", names[1], rng.choice(("shared", "exclusive"))),
            timeout_ms=rng.choice((None, None, 60)),
        )
        await hold(client, outer, rng, knobs)
        await client.convert(outer, "exclusive", rng.choice((None, None, 40)))
        await hold(client, outer, rng, knobs)
        if inner is not None:
            await client.release(inner)
        await client.release(outer)


async def newcomers(client: SimClient, rng: random.Random, knobs: Knobs) -> None:
    """Connect at the same instant as all others, acquire a lock, leave and connect again."""
    for _ in rounds(client, knobs):
        lease = await client.acquire(lock(rng, knobs), timeout_ms=rng.choice((None, 60)))
        if lease is not None:
            await hold(client, lease, rng, knobs)
            await client.release(lease)
        await client.core.close()
        client.connect()
        # At the next whole instant, together with all others.
        ms = client.host.kernel.now // 1000 % 40
        await client.host.sleep(40 - ms)


async def windows(client: SimClient, rng: random.Random, knobs: Knobs) -> None:
    """Run jobs at most once per window, on whichever client comes first."""
    for _ in rounds(client, knobs):
        await think(client, rng, knobs)
        lease = await client.acquire(
            Place("once", "job", "exclusive"),
            timeout_ms=rng.choice((0, 0, 40)),
            window_ms=int(span_ms(rng, knobs, "window_ms")),
            max_hold_ms=rng.choice((20, 200)),
        )
        if lease is not None:
            await hold(client, lease, rng, knobs)
            await client.release(lease)


_USUAL: Knobs = {"rounds": 2, "names": 2, "think_ms": (0, 60), "hold_ms": (1, 20)}
_WRITING: Knobs = {**_USUAL, "writes": 0.4}

WORKLOADS: dict[str, Workload] = {
    "turns": Workload(turns, {**_WRITING, "names": 1}),
    "impatient": Workload(impatient, _USUAL),
    "readers": Workload(readers, _USUAL),
    "upgrades": Workload(upgrades, {**_USUAL, "names": 1}),
    "permits": Workload(permits, {**_USUAL, "limit": 3}),
    "several": Workload(several, _USUAL),
    "tree": Workload(tree, _USUAL),
    "priorities": Workload(priorities, _WRITING),
    "bounded": Workload(bounded, {**_WRITING, "hold_ms": (1, 40)}),
    "many": Workload(many, {**_WRITING, "tasks": 2}),
    "comings_and_goings": Workload(comings_and_goings, _USUAL),
    "meddling": Workload(meddling, _WRITING),
    "nested": Workload(nested, _USUAL),
    "long_holds": Workload(long_holds, {**_USUAL, "hold_ms": (900, 1800)}),
    "kept": Workload(kept, {**_USUAL, "hold_ms": (1, 15), "block": 4096}),
    "ttls": Workload(ttls, {**_WRITING, "names": 1}),
    "crowd": Workload(crowd, {**_USUAL, "rounds": 1, "lines": 70, "hold_ms": (1, 3)}),
    "closing": Workload(closing, {**_USUAL, "tasks": 3, "open_ms": (1, 60)}),
    "ending": Workload(ending, {**_WRITING, "tasks": 2, "think_ms": (0, 40)}),
    "long_line": Workload(many, {**_WRITING, "rounds": 1, "names": 1, "tasks": 10}),
    "short_blocks": Workload(kept, {**_USUAL, "hold_ms": (1, 15), "block": 3}),
    "crossed_upgrades": Workload(crossed_upgrades, _USUAL),
    "newcomers": Workload(newcomers, _USUAL),
    "windows": Workload(windows, {**_USUAL, "window_ms": (10, 120), "think_ms": (0, 30)}),
}

EXCLUSIVE_WORKLOADS = ("turns", "impatient", "bounded", "many", "comings_and_goings", "long_holds")
"""The workloads of a store with exclusive locks and no queue."""
