"""The keeper against its callers: many threads, very short TTLs, revocations.

This cannot be tested with one thread. Threads are switched as often as the interpreter allows, so
that whatever can happen between two steps does happen.
"""

from __future__ import annotations

import functools
import random
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator

import pytest

import lockfast
from lockfast import LeaseState
from lockfast.stores.memory import MemoryStore
from lockfast.stores.sqlite.store import SqliteStore
from tests.processes.crew import until

SECONDS = 4.0
NAMES = [f"lock/{number}" for number in range(6)]
TTLS = [0.1, 0.15, 0.3]


@pytest.fixture
def no_rest() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


class Referee:
    """Observes every grant, and what the leases report."""

    def __init__(self, strict: bool) -> None:
        self.strict = strict
        """True if no two may hold at once.

        A revoked holder continues until it is told, so this is so only while nothing is revoked.
        """
        self.mutex = threading.Lock()
        self.tokens: dict[str, list[int]] = defaultdict(list)
        self.inside: dict[str, set[lockfast.Lease]] = defaultdict(set)
        self.faults: list[str] = []
        self.losses = 0

    def enter(self, lease: lockfast.Lease) -> None:
        with self.mutex:
            self.inside[lease.name].add(lease)
            if holds(lease):
                self.tokens[lease.name].append(lease.token)

    def look(self, lease: lockfast.Lease) -> bool:
        """Return whether the lease is held; then no holder with a newer token may be inside."""
        with self.mutex:
            newer = [other for other in self.inside[lease.name] if other.token > lease.token]
            held = holds(lease)
            if held and newer and self.strict:
                self.faults.append(f"{lease.name}: {lease.token} held beside {newer}")
            return held

    def leave(self, lease: lockfast.Lease, *, lost: bool) -> None:
        with self.mutex:
            self.losses += lost
            self.inside[lease.name].discard(lease)

    def told(self, lease: lockfast.Lease) -> None:
        if lease.state is not LeaseState.LOST:
            self.faults.append(f"{lease!r} is not lost, and its loss was told")

    def verdict(self) -> list[str]:
        for name, tokens in self.tokens.items():
            if len(set(tokens)) < len(tokens):
                self.faults.append(f"{name}: two had one token")
            if self.strict and tokens != sorted(tokens):
                self.faults.append(f"{name}: tokens did not rise in the order of entry")
        return self.faults


def holds(lease: lockfast.Lease) -> bool:
    try:
        lease.check()
    except lockfast.LeaseLostError:
        return False
    return True


class Jobs:
    """Threads that work until told to stop, and their failures."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.enough = threading.Event()
        self.errors: list[str] = []
        self._threads: list[threading.Thread] = []

    def start(self, step: Callable[[random.Random], None]) -> None:
        chance = random.Random(self.chance.random())

        def run() -> None:
            try:
                while not self.enough.is_set():
                    step(chance)
            except BaseException as error:
                self.errors.append(repr(error))
                self.enough.set()

        self._threads.append(threading.Thread(target=run))
        self._threads[-1].start()

    def end(self, seconds: float) -> None:
        self.enough.wait(seconds)
        self.enough.set()
        for thread in self._threads:
            thread.join(60)
            if thread.is_alive():
                self.errors.append("a thread hangs")


def work(client: lockfast.Client, referee: Referee, chance: random.Random) -> None:
    """Acquire a lock, check the lease many times, and release it."""
    lock = client.lock(chance.choice(NAMES), ttl=chance.choice(TTLS))
    try:
        lease = lock.acquire(timeout=chance.choice([None, 0.02, 0.5]))
    except (lockfast.AcquireTimeoutError, lockfast.StoreUnavailableError):
        return
    except lockfast.LeaseLostError:
        assert not referee.strict, "only a revocation ends a wait"
        return
    referee.enter(lease)
    lease.on_lost(referee.told)
    held = True
    for _ in range(chance.randrange(30)):
        before, held = held, referee.look(lease)
        if held and not before:
            referee.faults.append(f"{lease!r} was lost and is held again")
    if chance.random() < 0.02:
        lease.lost.wait(chance.random() * 0.2)
        referee.look(lease)
    try:
        lease.release()
        referee.leave(lease, lost=False)
    except lockfast.LeaseLostError:
        referee.leave(lease, lost=True)
    except lockfast.OutcomeUnknownError:
        referee.leave(lease, lost=False)


def revoke(client: lockfast.Client, chance: random.Random) -> None:
    """Revoke a lock from its holder, or end a session."""
    time.sleep(chance.random() * 0.05)
    client.revoke(chance.choice(NAMES), reason="by the test")
    alive = [session.session for session in client.sessions() if not session.ended]
    if alive and chance.random() < 0.2:
        client.revoke(session=chance.choice(alive), reason="by the test")


def hold_up(client: lockfast.Client, chance: random.Random) -> None:
    """Keep the store from answering for longer than some sessions' TTL."""
    store = client._core.store
    assert isinstance(store, SqliteStore | MemoryStore)
    table = store.file() if isinstance(store, SqliteStore) else store._table
    time.sleep(chance.random() * 0.3)
    with table._mutex:
        time.sleep(chance.random() * 0.2)


@pytest.mark.usefixtures("no_rest")
@pytest.mark.parametrize("weather", [revoke, hold_up])
def test_keepers_and_callers_never_contradict_each_other(
    url: str, weather: Callable[[lockfast.Client, random.Random], None]
) -> None:
    """Tokens rise, no lost lease is held again, no two hold at once, nothing is left."""
    threads_before = threading.active_count()
    seed = random.randrange(1 << 32)
    jobs = Jobs(seed)
    referee = Referee(strict=weather is hold_up)
    clients = [lockfast.connect(url, connect_timeout=60.0) for _ in range(4)]
    for client in clients[1:]:
        for _ in range(3):
            jobs.start(functools.partial(work, client, referee))
    jobs.start(functools.partial(weather, clients[0]))

    jobs.end(SECONDS)

    assert jobs.errors == [], f"seed {seed}"
    assert referee.verdict() == [], f"seed {seed}"
    assert referee.losses > 0, f"seed {seed}: nothing was lost, so nothing was tried"
    until(lambda: not clients[0].list(), f"nothing is left in the store (seed {seed})")
    for client in clients:
        client.close()
    until(
        lambda: threading.active_count() <= threads_before,
        f"{threading.enumerate()} end (seed {seed})",
    )
