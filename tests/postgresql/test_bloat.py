"""What locks leave in the tables until the next vacuum; `./dev bench bloat` is the long form."""

from __future__ import annotations

import lockfast
from bench.bloat import measure
from lockfast.stores.postgresql.opening import open_maintenance
from lockfast.stores.registry import parse_url
from tests.servers.postgresql import PostgresServer

PAIRS = 1500
BYTES_PER_PAIR_MAX = 500
"""Then a minute at 1,600 pairs per second between two vacuums stays below 50 MB."""


def test_pages_are_reused_between_vacuums() -> None:
    """Row versions of earlier steps are pruned without a vacuum, and updates are HOT."""
    with PostgresServer("autovacuum=off") as server:
        with lockfast.connect(server.url(), ttl=3) as client:
            client.lock("first").acquire().release()
            before = measure(server)
            for i in range(PAIRS):
                client.lock(f"orders/{i % 7}").acquire().release()
            after = measure(server)
        assert (after.bytes - before.bytes) / PAIRS < BYTES_PER_PAIR_MAX
        assert after.hot_share > 0.9
        found = {row.what: row for row in open_maintenance(parse_url(server.url())).examine()}
        assert "autovacuum is off" in found["tables"].found
        assert found["updates"].verdict == "good"
        server.run("ALTER TABLE lockfast.claims SET (fillfactor = 60)")
        found = {row.what: row for row in open_maintenance(parse_url(server.url())).examine()}
        assert found["updates"].verdict == "note"
