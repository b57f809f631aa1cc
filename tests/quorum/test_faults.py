"""Faults of real nodes: killed, stopped, restarted empty, flushed."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import ExitStack
from time import monotonic, sleep, time

import pytest

import lockfast
from lockfast import aio
from lockfast.errors import (
    AcquireTimeoutError,
    LeaseLostError,
    OutcomeUnknownError,
    StoreUnavailableError,
)
from lockfast.stores.quorum.codec import keys_of
from tests.quorum.nodes import SKEW_S, FiveNodes
from tests.servers.redis import RedisServer

PATIENCE_S = 30.0


def _namespace(url: str) -> str:
    return url.partition("namespace=")[2].partition("&")[0]


def test_two_of_five_killed_change_nothing(fragile: FiveNodes) -> None:
    url = fragile.url()
    with lockfast.connect(url, ttl=20) as client:
        before = client.lock("a").acquire()
        for server in fragile.servers[:2]:
            server.kill()
        tokens = [before.token]
        before.release()
        for _ in range(20):
            with client.lock("a") as lease:
                tokens.append(lease.token)
        with lockfast.connect(url) as other, other.lock("a") as lease:
            tokens.append(lease.token)
    assert tokens == sorted(set(tokens))


def test_two_of_five_stopped_change_nothing(fragile: FiveNodes) -> None:
    url = fragile.url()
    with ExitStack() as stack:
        client = stack.enter_context(lockfast.connect(url, ttl=20))
        held = client.lock("a").acquire()
        tokens = [held.token]
        for server in fragile.servers[3:]:
            stack.enter_context(server.stopped())
        # Also for a client that never reached them.
        late = stack.enter_context(lockfast.connect(url, ttl=20))
        assert late.lock("a").try_acquire() is None
        for _ in range(10):
            with late.lock("b") as lease:
                tokens.append(lease.token)
        held.release()
    assert tokens == sorted(set(tokens))


def test_tasks_do_not_notice_two_dead_nodes(fragile: FiveNodes) -> None:
    url = fragile.url()

    async def main() -> list[int]:
        tokens: list[int] = []
        async with aio.connect(url, ttl=20) as client:
            async with client.lock("a") as lease:
                tokens.append(lease.token)
            fragile.servers[0].kill()
            with fragile.servers[4].stopped():

                async def work() -> None:
                    for _ in range(5):
                        async with client.lock("a") as lease:
                            tokens.append(lease.token)

                await asyncio.gather(*(work() for _ in range(4)))
        return tokens

    tokens = asyncio.run(main())
    assert len(tokens) == 21
    assert tokens == sorted(set(tokens))


def test_without_a_majority_nothing_is_granted(fragile: FiveNodes) -> None:
    with lockfast.connect(fragile.url(), connect_timeout=0.5) as client:
        lease = client.lock("a").acquire()
        for server in fragile.servers[:3]:
            server.kill()
        with pytest.raises(StoreUnavailableError, match="of 5 nodes answered, 3 are needed"):
            client.lock("b").acquire(timeout=0)
        with pytest.raises(OutcomeUnknownError):
            lease.release()


def test_a_lease_outlives_the_nodes_that_granted_it(fragile: FiveNodes) -> None:
    """A keep-alive copies it to nodes that lack it, so the nodes may restart one by one."""
    url = fragile.url(silence=2)
    with lockfast.connect(url, ttl=1) as client, lockfast.connect(url, ttl=1) as other:
        for server in fragile.servers[3:]:
            server.kill()
        lease = client.lock("a").acquire()
        for server in fragile.servers[3:]:
            server.start()
            fragile.make_known(server, _namespace(url))

        def has_it(number: int) -> bool:
            address = fragile.servers[number]
            return bool(address.run("KEYS", "*:rows"))

        _until(lambda: has_it(3) and has_it(4))
        for server in fragile.servers[:2]:
            server.kill()
        before = lease.deadline
        _until(lambda: lease.deadline >= before + 1)
        assert lease.state == "held"
        assert other.lock("a").try_acquire() is None
        lease.release()


def test_nodes_that_restart_empty_are_silent_first(fragile: FiveNodes) -> None:
    """All nodes lose everything at once: the lock is free again, but only once its holder stops."""
    url = fragile.url(silence=2)
    with lockfast.connect(url, ttl=2) as client, lockfast.connect(url, ttl=2) as other:
        lease = client.lock("a").acquire()
        stops_at = lease.deadline
        for server in fragile.servers:
            server.kill()
        for server in fragile.servers:
            server.start()
        later = other.lock("a").acquire(timeout=PATIENCE_S)
        assert monotonic() >= stops_at
        assert later.token > lease.token
        assert lease.lost.is_set()
        later.release()


def test_a_node_does_not_count_a_second_of_silence_before_it_was_started(
    fragile: FiveNodes,
) -> None:
    """Redis counts its uptime in whole seconds: a node started just before one is up for a second
    just after it."""
    url = fragile.url(silence=2)
    rows = keys_of(_namespace(url))[0]
    server = fragile.servers[0]
    server.kill()
    while time() % 1 < 0.9:
        sleep(0.01)
    started_ms = time() * 1000
    server.start()
    _until(lambda: "uptime_in_seconds:0" not in server.run("INFO", "server"))
    with lockfast.connect(url, ttl=2) as client:
        client.lock("a").acquire(timeout=PATIENCE_S).release()
        _until(lambda: bool(server.run("HGET", rows, "run")))
    assert float(server.run("HGET", rows, "silent")) >= started_ms + 1000 * (2 + 2 * SKEW_S)


def test_flushed_nodes_are_silent_too(fragile: FiveNodes) -> None:
    url = fragile.url(silence=1)
    with lockfast.connect(url, ttl=1) as client, lockfast.connect(url, ttl=1) as other:
        other.lock("warm").acquire().release()
        lease = client.lock("a").acquire()
        for server in fragile.servers:
            server.run("FLUSHALL")
        with pytest.raises(AcquireTimeoutError):
            other.lock("a").acquire(timeout=0.2)
        later = other.lock("a").acquire(timeout=PATIENCE_S)
        assert later.token > lease.token
        assert lease.lost.wait(PATIENCE_S)
        later.release()


def test_nobody_overlaps_while_nodes_come_and_go(fragile: FiveNodes) -> None:
    """Two nodes at a time are killed, stopped and restarted empty while clients contend."""
    url = fragile.url(silence=1)
    inside: list[int] = []
    tokens: list[int] = []
    overlaps: list[str] = []
    stop = threading.Event()

    def work() -> None:
        with lockfast.connect(url, ttl=1, connect_timeout=10) as client:
            while not stop.is_set():
                try:
                    with client.lock("a") as lease:
                        inside.append(lease.token)
                        if len(inside) > 1:
                            overlaps.append(f"{inside}")
                        tokens.append(lease.token)
                        lease.check()
                        inside.remove(lease.token)
                except (LeaseLostError, OutcomeUnknownError):
                    inside[:] = [token for token in inside if token != lease.token]

    workers = [threading.Thread(target=work) for _ in range(4)]
    for worker in workers:
        worker.start()
    try:
        for round_ in range(4):
            killed, stopped = (fragile.servers[(2 * round_ + i) % 5] for i in range(2))
            seen = len(tokens)
            with stopped.stopped():
                killed.kill()
                _until(lambda seen=seen: len(tokens) > seen + 5)  # type: ignore[misc]
                killed.start()
            _until_grants(killed)
    finally:
        stop.set()
        for worker in workers:
            worker.join(PATIENCE_S)
    assert not any(worker.is_alive() for worker in workers)
    assert overlaps == []
    assert tokens == sorted(set(tokens))


def _until_grants(server: RedisServer) -> None:
    """Wait until a node that restarted empty has ended its silence."""

    def has_locks() -> bool:
        rows = [field for key in server.run("KEYS", "*:rows") for field in server.run("HKEYS", key)]
        return any(field.startswith("L") for field in rows)

    _until(has_locks)


def _until(condition: Callable[[], bool]) -> None:
    """Poll for a condition, for a bounded time."""
    give_up_s = monotonic() + PATIENCE_S
    ticker = threading.Event()
    while not condition():
        assert monotonic() < give_up_s, "it never happened"
        ticker.wait(0.02)
