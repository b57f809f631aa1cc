"""The PostgreSQL store against a floor and against advisory locks by hand.

The floor is the least a durable lock in a table can cost: two single-row upserts on one psycopg
connection, each committed to disk. All contestants take turns, round by round, on one server.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from statistics import median
from time import perf_counter
from typing import NamedTuple

import psycopg

import lockfast
from tests.servers.postgresql import PostgresServer

__all__ = ["PostgresFigures", "report_postgresql", "run_postgresql"]

MANY = 64
FLOOR_TIMES_MAX = 1.15
PARALLEL_TIMES_MIN = 3.0


class PostgresFigures(NamedTuple):
    pair_us: dict[str, float]
    """Median time of an acquire and a release, by contestant."""
    one_per_s: float
    """Pairs per second of threads that share one lock, in one client."""
    many_per_s: float
    """The same with a lock for each thread."""


@contextmanager
def _floor(server: PostgresServer) -> Iterator[Callable[[], None]]:
    sql = (
        "INSERT INTO floor VALUES ('orders/42', 1) ON CONFLICT (name) DO UPDATE"
        " SET token = floor.token + 1 RETURNING token"
    )
    server.run("CREATE TABLE IF NOT EXISTS floor (name text PRIMARY KEY, token bigint)")
    with psycopg.connect(server.conninfo(), autocommit=True, prepare_threshold=0) as connection:

        def pair() -> None:
            connection.execute(sql).fetchone()
            connection.execute(sql).fetchone()

        yield pair


@contextmanager
def _advisory(server: PostgresServer) -> Iterator[Callable[[], None]]:
    with psycopg.connect(server.conninfo(), autocommit=True, prepare_threshold=0) as connection:

        def pair() -> None:
            connection.execute("SELECT pg_advisory_lock(42)").fetchone()
            connection.execute("SELECT pg_advisory_unlock(42)").fetchone()

        yield pair


@contextmanager
def _lockfast(server: PostgresServer) -> Iterator[Callable[[], None]]:
    with lockfast.connect(server.url(), ttl=60) as client:
        lock = client.lock("orders/42")

        def pair() -> None:
            lock.acquire().release()

        yield pair


_CONTESTANTS = {"floor": _floor, "advisory lock": _advisory, "lockfast": _lockfast}


def run_postgresql(rounds: int, pairs: int) -> PostgresFigures:
    """Measure on a server of its own, with its data on a disk."""
    with PostgresServer("max_connections=120", durable=True) as server, ExitStack() as stack:
        ready = {name: stack.enter_context(make(server)) for name, make in _CONTESTANTS.items()}
        took: dict[str, list[float]] = {name: [] for name in ready}
        for pair in ready.values():
            pair()
        for _ in range(rounds):
            for name, pair in ready.items():
                began = perf_counter()
                for _ in range(pairs):
                    pair()
                took[name].append((perf_counter() - began) / pairs * 1e6)
        pair_us = {name: median(times) for name, times in took.items()}
        one = _together(server, lambda i: "orders/42", pairs)
        many = _together(server, lambda i: f"orders/{i}", pairs)
        return PostgresFigures(pair_us, one, many)


def _together(server: PostgresServer, name_of: Callable[[int], str], pairs: int) -> float:
    """Pairs per second of many threads of one client."""
    each = max(2, pairs // 8)
    with lockfast.connect(server.url(connections=str(MANY)), ttl=60) as client:

        def use(i: int, times: int) -> None:
            for _ in range(times):
                client.lock(name_of(i)).acquire().release()

        use(0, 1)
        threads = [threading.Thread(target=use, args=(i, each)) for i in range(MANY)]
        began = perf_counter()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return MANY * each / (perf_counter() - began)


def report_postgresql(figures: PostgresFigures) -> Iterator[str]:
    """The figures and targets, as lines of text."""
    floor = figures.pair_us["floor"]
    for name, time_us in figures.pair_us.items():
        yield f"{name:15} {time_us:8.0f} µs per pair   {time_us / floor:5.2f} × the floor"
    times = figures.pair_us["lockfast"] / floor
    yield f"pair: {times:.2f} × the floor (target: at most {FLOOR_TIMES_MAX})"
    yield f"{MANY} threads, one lock:   {figures.one_per_s:8.0f} pairs/s"
    yield f"{MANY} threads, {MANY} locks:   {figures.many_per_s:8.0f} pairs/s"
    rate = figures.many_per_s / figures.one_per_s
    yield f"in parallel: {rate:.1f} × the rate of one lock (target: at least {PARALLEL_TIMES_MIN})"
