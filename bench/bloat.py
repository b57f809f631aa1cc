"""How large the PostgreSQL store's tables grow while locks are acquired and released.

Between two runs of autovacuum (a minute by default) the tables grow with every pair. A scaled run
divides the pairs and the pause between vacuums by the same factor, so it needs fewer pairs for as
many vacuums.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from time import monotonic
from typing import NamedTuple

import lockfast
from lockfast import StoreError
from tests.servers.postgresql import PostgresServer

__all__ = ["QUICK_FACTOR", "Size", "measure", "run_bloat"]

PAIRS = 1_000_000
NAPTIME_S = 60
LIMIT_MB = 50
QUICK_FACTOR = 60
"""A vacuum every second, so at most two seconds between those of one table."""
THREADS = 4


class Size(NamedTuple):
    bytes: int
    """The size of all tables and indexes."""
    hot_share: float
    """The share of HOT updates among the updates of claims."""
    vacuums: int


def measure(server: PostgresServer) -> Size:
    """Return the current size; the statistics of the last second may be missing."""
    ((size, vacuums, updates, hot),) = server.run(
        "SELECT sum(pg_total_relation_size(relid))::bigint, sum(autovacuum_count)::bigint,"
        " sum(n_tup_upd) FILTER (WHERE relname = 'claims'),"
        " sum(n_tup_hot_upd) FILTER (WHERE relname = 'claims')"
        " FROM pg_stat_user_tables WHERE schemaname = 'lockfast'"
    )
    return Size(size, float(hot) / max(1, int(updates)), vacuums)


def run_bloat(factor: int) -> Iterator[str]:
    """Yield lines of text: the growth, and the final size scaled back."""
    pairs = PAIRS // factor
    naptime_s = max(1, NAPTIME_S // factor)
    with (
        PostgresServer(f"autovacuum_naptime={naptime_s}s") as server,
        lockfast.connect(server.url(), ttl=max(1.0, 30 / factor)) as client,
    ):
        client.lock("first").acquire().release()
        empty = measure(server)
        began_s = monotonic()
        largest = 0
        with ThreadPoolExecutor(THREADS) as pool:
            running = {pool.submit(_take, client, i, pairs // THREADS) for i in range(THREADS)}
            working = running
            while working:
                _, working = wait(working, timeout=1.0)
                largest = max(largest, measure(server).bytes)
        failed = sum(done.result() for done in running)
        took_s = monotonic() - began_s
        last = measure(server)
    grown = max(largest, last.bytes) - empty.bytes
    yield f"{pairs} pairs in {took_s:.0f} s, autovacuum every {naptime_s} s (1/{factor} of each)"
    yield f"{failed} requests without an answer in time"
    yield f"largest: {max(largest, last.bytes) / 1e6:.1f} MB, {empty.bytes / 1e6:.1f} MB when empty"
    yield f"{last.vacuums} vacuums; {last.hot_share:.1%} of the updates of claims were HOT"
    real_mb = (empty.bytes + grown * factor) / 1e6
    yield f"scaled back: {real_mb:.0f} MB for {PAIRS} pairs (target: below {LIMIT_MB})"


def _take(client: lockfast.Client, i: int, pairs: int) -> int:
    """Acquire and release locks; return how many requests failed, as on a busy machine."""
    failed = 0
    for k in range(pairs):
        try:
            client.lock(f"orders/{i}/{k % 100}").acquire().release()
        except StoreError:
            failed += 1
    return failed
