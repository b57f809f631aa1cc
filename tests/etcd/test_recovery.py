"""After a fault is healed, a waiter has the lock within three TTLs."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from time import monotonic

import pytest

import lockfast
from lockfast.core import commands as c
from lockfast.runtimes.threads import run
from lockfast.stores.etcd import EtcdStore
from tests.etcd.harness import address_of
from tests.processes.crew import until
from tests.servers.etcd import EtcdCluster

PLACE = c.Place("lock", "orders/42", "exclusive")
TTL_S = 5
HEALED_S_MAX = 3 * TTL_S


@contextmanager
def waits_through(url: str) -> Iterator[None]:
    """Wait for a lock whose holder has died, and get it in time once the block is left."""
    took: list[float] = []
    dead = EtcdStore(address_of(url))
    entered = c.Enter("s", 1, (PLACE,), open=c.Open("s", TTL_S * 1000, "dead"))
    assert isinstance(run(dead.caller_wire().send(entered, 5000)), c.Granted)
    dead.close()
    with lockfast.connect(url, ttl=TTL_S) as client, lockfast.connect(url, ttl=TTL_S) as watcher:

        def take() -> None:
            with client.lock("orders/42"):
                took.append(monotonic())

        thread = threading.Thread(target=take)
        thread.start()
        until(lambda: watcher.inspect("orders/42").waiting_count == 1, "it waits")
        yield
        healed = monotonic()
        thread.join(60)
        assert took, "nobody has the lock"
        assert took[0] - healed <= HEALED_S_MAX


def test_every_member_is_restarted_in_turn() -> None:
    with EtcdCluster(3) as cluster, waits_through(cluster.url("rolling")):
        for member in cluster.members:
            member.kill()
            member.start()
            cluster.until_ready()


def test_out_of_space_and_compacted() -> None:
    with EtcdCluster(1) as node, waits_through(node.url("full")):
        alarm = {"memberID": "0", "alarm": "NOSPACE"}
        node.call("/v3/maintenance/alarm", {"action": "ACTIVATE", **alarm})
        with (
            lockfast.connect(node.url("full"), ttl=TTL_S) as other,
            pytest.raises((lockfast.StoreUnavailableError, lockfast.OutcomeUnknownError)),
        ):
            other.lock("another").acquire(timeout=1)
        revision = node.call("/v3/kv/range", {"key": "AA=="})["header"]["revision"]
        node.call("/v3/kv/compaction", {"revision": revision, "physical": True})
        node.call("/v3/maintenance/alarm", {"action": "DEACTIVATE", **alarm})
