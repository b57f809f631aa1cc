"""The roles of the processes of these tests."""

from __future__ import annotations

import asyncio
import os
import random

import lockfast
from lockfast import aio
from tests.processes.crew import Link


def everything(link: Link, seed: int, times: int) -> None:
    """Use every kind of lock, in any order, one at a time."""
    rng = random.Random(seed)
    client = link.connect(ttl=10)
    link.say("ready")
    link.hear()
    for _ in range(times):
        _once(client, rng)
    client.close()
    link.say("done")


def _once(client: lockfast.Client, rng: random.Random) -> None:
    way = rng.randrange(6)
    if way == 0:
        with client.lock("a", priority=rng.choice((0, 0, 3))):
            pass
    elif way == 1:
        lease = client.lock("b").try_acquire()
        if lease is not None:
            lease.release()
    elif way == 2:
        with client.rwlock("c").update() as lease:
            if rng.random() < 0.5:
                lease.upgrade()
                lease.downgrade()
    elif way == 3:
        with client.semaphore("s", limit=3).acquire(permits=rng.randrange(1, 4)):
            pass
    elif way == 4:
        with client.all("a", "b"):
            pass
    else:
        with client.lock("k", retain=True):
            pass


def on_a_loop(link: Link, times: int) -> None:
    """Do the same with the asyncio API, in several concurrent tasks."""

    async def work() -> None:
        client = aio.connect(link.url, ttl=10)

        async def take_turns() -> None:
            for _ in range(times):
                async with client.lock("a"):
                    pass

        await asyncio.gather(*(take_turns() for _ in range(4)))
        await client.close()

    link.say("ready")
    link.hear()
    asyncio.run(work())
    link.say("done")


def hold_for_ever(link: Link) -> None:
    lease = link.connect(ttl=60).lock("a").acquire()
    link.say("held", lease.token)
    link.hear()


def fork_inside(link: Link) -> None:
    """Let parent and child acquire the same lock, with one client that both inherited."""
    client = link.connect(ttl=10)
    with client.lock("a"):
        child = os.fork()
        if child == 0:
            os._exit(_take_turns_in_child(client))
    for _ in range(5):
        with client.lock("a"):
            pass
    _, status = os.waitpid(child, 0)
    client.close()
    link.say("done", os.waitstatus_to_exitcode(status))


def _take_turns_in_child(client: lockfast.Client) -> int:
    for _ in range(5):
        with client.lock("a"):
            pass
    client.close()
    return 0
