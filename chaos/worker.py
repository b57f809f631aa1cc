"""One worker process: acquires locks with the public API, works on what they protect, releases.

Started by `case.py` with its orders as JSON. It ends when its standard input is closed, and then
prints its report. The rounds are written once, as `async def`; the blocking API runs them with
`send`, like Lockfast's own flow code.
"""

from __future__ import annotations

import asyncio
import faulthandler
import json
import logging
import os
import random
import signal
import sys
import threading
import time
import traceback
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

import lockfast
from chaos.witness import Register
from lockfast import aio
from lockfast.runtimes.platform import now_us
from lockfast.runtimes.threads import run

ACQUIRE_S: Final = 8.0
"""The timeout of an acquire."""
CONNECT_S: Final = 2.0
CLOSING_S: Final = 30.0
"""A worker that has not ended this long after it was asked to counts as hung."""
LATE: Final = 0.5
"""How often a holder checks its lease before its work but not after it: the mistake against which
only fencing helps."""

logger = logging.getLogger("chaos")


F = TypeVar("F", "Blocking", "OnLoop")


@dataclass
class Orders:
    """The orders of a worker."""

    url: str
    witness: str
    by: str
    face: str
    """`threads` or `asyncio`."""
    ttl: float
    seed: str
    names: list[str]
    shares: bool
    """The store has shared locks and semaphores."""
    lanes: int
    """The number of threads or tasks."""
    hold_ms: float
    pause_ms: float


@dataclass
class Seen:
    """The report of a worker."""

    rounds: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    unexpected: list[str] = field(default_factory=list)
    """Errors that are not Lockfast's."""
    slowest_s: float = 0.0
    """The duration of the longest call."""


class Blocking:
    """The blocking API."""

    def __init__(self, orders: Orders) -> None:
        self.client = lockfast.connect(orders.url, ttl=orders.ttl, connect_timeout=CONNECT_S)

    async def acquire(self, kind: str, name: str, timeout: float | None) -> Any:
        recipe = recipe_of(self.client, kind, name)
        return recipe.try_acquire() if timeout is None else recipe.acquire(timeout=timeout)

    async def release(self, lease: Any) -> None:
        lease.release()

    async def sleep(self, seconds: float) -> None:
        time.sleep(seconds)  # noqa: ASYNC251 - never suspends, by design

    async def close(self) -> None:
        self.client.close()


class OnLoop:
    """The asyncio API."""

    def __init__(self, orders: Orders) -> None:
        self.client = aio.connect(orders.url, ttl=orders.ttl, connect_timeout=CONNECT_S)

    async def acquire(self, kind: str, name: str, timeout: float | None) -> Any:
        recipe = recipe_of(self.client, kind, name)
        if timeout is None:
            return await recipe.try_acquire()
        return await recipe.acquire(timeout=timeout)

    async def release(self, lease: Any) -> None:
        await lease.release()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def close(self) -> None:
        await self.client.close()


def connected(kind: type[F], orders: Orders, over: threading.Event) -> F | None:
    """Return a client as soon as one can be made: the disk may be full at the moment."""
    while not over.is_set():
        try:
            return kind(orders)
        except lockfast.StoreError as error:
            logger.warning("%s", error)
            over.wait(0.1)
    return None


def recipe_of(client: Any, kind: str, name: str) -> Any:
    match kind:
        case "shared":
            return client.rwlock(name).read()
        case "permit":
            return client.semaphore(f"{name}-permits", limit=2)
        case _:
            return client.lock(name)


class Lane:
    """One thread or task of a worker."""

    def __init__(
        self,
        face: Blocking | OnLoop,
        orders: Orders,
        number: int,
        seen: Seen,
        over: threading.Event,
    ) -> None:
        self._face = face
        self._orders = orders
        self._seen = seen
        self._over = over
        self._rng = random.Random(f"{orders.seed} {number}")
        by = orders.by if orders.lanes == 1 else f"{orders.by}.{number}"
        self._register = Register(orders.witness, by)

    async def work(self) -> None:
        """Run rounds until the worker should end."""
        while not self._over.is_set():
            try:
                outcome = await self._round()
            except lockfast.LockfastError as error:
                outcome = type(error).__name__
            except Exception:
                outcome = "unexpected"
                self._seen.unexpected.append(traceback.format_exc()[-2000:])
            self._seen.rounds += 1
            self._seen.outcomes[outcome] += 1
            pause_s = self._rng.expovariate(1000 / self._orders.pause_ms)
            await self._face.sleep(min(1.0, pause_s) if outcome in ("done", "busy") else 0.05)
        self._register.close()

    async def _round(self) -> str:
        name = self._rng.choice(self._orders.names)
        kind = "exclusive"
        if self._orders.shares:
            kind = self._rng.choices(["exclusive", "shared", "permit"], [16, 3, 1])[0]
        timeout = None if self._rng.random() < 0.1 else ACQUIRE_S
        lease = await self._timed(self._face.acquire(kind, name, timeout))
        if lease is None:
            return "busy"
        try:
            if kind == "exclusive":
                return await self._work(lease, name)
            await self._hold()
            return "done"
        finally:
            await self._timed(self._face.release(lease))

    async def _work(self, lease: Any, name: str) -> str:
        """Add one to both registers, as a holder that may be stopped at any point."""
        register, token = self._register, lease.token
        self._prove(lease, name)
        fenced = register.ask("read", name, token)
        if "stale" in fenced:
            return "stale"
        unfenced = register.ask("read unfenced", name, token)["value"]
        late = self._rng.random() < LATE
        if not late:
            await self._hold()
        self._prove(lease, name)
        if late:
            await self._hold()
        register.ask("write unfenced", name, token, value=unfenced + 1)
        written = register.ask("write", name, token, value=fenced["value"] + 1)
        return "stale" if "stale" in written else "done"

    def _prove(self, lease: Any, name: str) -> None:
        at = now_us()
        lease.check()
        self._register.ask("held", name, lease.token, at=at)

    async def _hold(self) -> None:
        await self._face.sleep(self._rng.uniform(0, self._orders.hold_ms) / 1000)

    async def _timed(self, call: Any) -> Any:
        started = time.monotonic()
        try:
            return await call
        finally:
            self._seen.slowest_s = max(self._seen.slowest_s, time.monotonic() - started)


def main() -> None:
    faulthandler.register(signal.SIGUSR1)  # where it hangs, if it does
    logging.basicConfig(format="%(asctime)s %(message)s")
    orders = Orders(**json.loads(sys.argv[1]))
    over, seen = threading.Event(), Seen()
    threading.Thread(target=_await_end, args=(over,), daemon=True).start()
    if orders.face == "asyncio":
        asyncio.run(_on_loop(orders, seen, over))
    else:
        _in_threads(orders, seen, over)
    print(json.dumps({**vars(seen), "outcomes": dict(seen.outcomes)}), flush=True)


def _in_threads(orders: Orders, seen: Seen, over: threading.Event) -> None:
    face = connected(Blocking, orders, over)
    if face is None:
        return
    lanes = [Lane(face, orders, number, seen, over) for number in range(orders.lanes)]
    threads = [threading.Thread(target=lambda lane=lane: run(lane.work())) for lane in lanes]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    run(face.close())


async def _on_loop(orders: Orders, seen: Seen, over: threading.Event) -> None:
    face = connected(OnLoop, orders, over)
    if face is None:
        return
    lanes = [Lane(face, orders, number, seen, over) for number in range(orders.lanes)]
    async with asyncio.TaskGroup() as group:
        for lane in lanes:
            group.create_task(lane.work())
    await face.close()


def _await_end(over: threading.Event) -> None:
    while os.read(0, 4096):
        pass
    over.set()


if __name__ == "__main__":
    main()
