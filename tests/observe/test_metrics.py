"""Prometheus metrics: their values, their labels, and several processes."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

import lockfast
from lockfast import metrics
from lockfast.guards import MemoryGuard
from lockfast.telemetry.measures import MEASURES


@pytest.fixture
def registry() -> CollectorRegistry:
    return CollectorRegistry()


@pytest.fixture
def exported(registry: CollectorRegistry) -> Iterator[lockfast.Subscription]:
    with metrics.enable(registry) as subscription:
        yield subscription


@pytest.fixture
def client() -> Iterator[lockfast.Client]:
    # No keep-alive is due during a test: its metrics would be new time series.
    with lockfast.connect("memory://", owner="me", ttl=3600) as client:
        yield client


def value(registry: CollectorRegistry, metric: str, /, **labels: str) -> float:
    return registry.get_sample_value(metric, labels) or 0.0


def series(registry: CollectorRegistry) -> int:
    return sum(len(metric.samples) for metric in registry.collect())


LOCK = {"store": "memory", "mode": "exclusive"}


def test_what_a_contended_pair_counts(
    client: lockfast.Client, registry: CollectorRegistry, exported: lockfast.Subscription
) -> None:
    lease = client.lock("orders/1").acquire()
    thread = threading.Thread(target=lambda: client.lock("orders/1").acquire().release())
    thread.start()
    until = time.monotonic() + 30
    while not value(registry, "lockfast_waiters", **LOCK):
        assert time.monotonic() < until
        time.sleep(0.01)
    assert value(registry, "lockfast_locks_held", **LOCK) == 1
    assert client.lock("orders/1").try_acquire() is None
    lease.release()
    thread.join()
    assert exported.flush()
    assert value(registry, "lockfast_acquire_total", outcome="granted", **LOCK) == 2
    assert value(registry, "lockfast_acquire_total", outcome="busy", **LOCK) == 1
    assert value(registry, "lockfast_acquire_contended_total", **LOCK) == 2
    assert value(registry, "lockfast_acquire_wait_seconds_count", **LOCK) == 2
    assert value(registry, "lockfast_hold_seconds_count", **LOCK) == 2
    assert value(registry, "lockfast_queue_length_at_entry_sum", **LOCK) == 1
    assert value(registry, "lockfast_locks_held", **LOCK) == 0
    assert value(registry, "lockfast_waiters", **LOCK) == 0
    assert value(registry, "lockfast_store_up", store="memory") == 1
    assert value(registry, "lockfast_token_age_seconds", store="memory") == 0


def test_losses_deadlocks_guards_and_leaders(
    client: lockfast.Client, registry: CollectorRegistry, exported: lockfast.Subscription
) -> None:
    lease = client.lock("a").acquire()
    client.revoke("a", reason="stuck")
    assert lease.lost.wait(30)
    guard = MemoryGuard()
    guard.admit("x", 2)
    with pytest.raises(lockfast.StaleTokenError):
        guard.admit("x", 1)
    with client.election("boss").campaign(value="me"):
        assert exported.flush()
        assert value(registry, "leader_election_master_status", name="") == 1
    assert exported.flush()
    assert value(registry, "leader_election_master_status", name="") == 0
    assert value(registry, "lockfast_lease_lost_total", store="memory", reason="revoked") == 1
    assert value(registry, "lockfast_fence_rejected_total", guard="memory") == 1
    assert value(registry, "lockfast_fence_admitted_total", guard="memory") == 1


def test_a_conversion_moves_the_lease_to_its_new_mode(
    client: lockfast.Client, registry: CollectorRegistry, exported: lockfast.Subscription
) -> None:
    with client.rwlock("a").update() as lease:
        lease.upgrade()
        assert exported.flush()
        assert value(registry, "lockfast_locks_held", **LOCK) == 1
        assert value(registry, "lockfast_locks_held", store="memory", mode="update") == 0
    assert exported.flush()
    assert value(registry, "lockfast_locks_held", **LOCK) == 0


def test_keep_alives_are_counted_and_the_oldest_token_ages(
    registry: CollectorRegistry, exported: lockfast.Subscription
) -> None:
    with lockfast.connect("memory://", ttl=0.3) as client, client.lock("a"):
        until = time.monotonic() + 30
        while value(registry, "lockfast_renew_total", store="memory", outcome="ok") < 2:
            assert time.monotonic() < until
            time.sleep(0.01)
        assert value(registry, "lockfast_token_age_seconds", store="memory") > 0.05
        assert value(registry, "lockfast_keepalive_seconds_count", store="memory") >= 2


def test_a_hundred_thousand_names_are_no_new_time_series(
    client: lockfast.Client, registry: CollectorRegistry, exported: lockfast.Subscription
) -> None:
    def use(name: str) -> None:
        with client.lock(name):
            pass
        with client.election(f"e/{name}").campaign(value="me"):
            pass

    use("first")
    assert exported.flush(30)
    before = series(registry)
    for number in range(1000):
        use(f"used/{number}")
    # The rest as events only: the names matter here, and acquiring so many would take a minute.
    pair = _events_of_a_pair(client)
    for number in range(100_000):
        for event in pair:
            renamed = event._replace(subject=event.subject._replace(name=f"name/{number}"))
            exported._delivery.observer(renamed)
    use("last")
    assert exported.flush(30)
    assert series(registry) == before
    total = value(registry, "lockfast_acquire_total", outcome="granted", **LOCK)
    assert total >= 100_000


def _events_of_a_pair(client: lockfast.Client) -> list[Any]:
    seen: list[Any] = []
    with lockfast.observe(seen.append):
        with client.lock("x"):
            pass
    return [event for event in seen if hasattr(event, "subject")]


def test_names_on_the_list_get_a_label_and_no_others(
    client: lockfast.Client, registry: CollectorRegistry
) -> None:
    with metrics.enable(registry, lock_names=["orders/{id}", "nightly"]) as exported:
        for name in ("orders/1", "orders/2", "orders/1/x", "nightly", "secret"):
            with client.lock(name):
                pass
        assert exported.flush()
    found = {
        lock: value(registry, "lockfast_acquire_total", outcome="granted", lock=lock, **LOCK)
        for lock in ("orders/{id}", "nightly", "", "secret")
    }
    assert found == {"orders/{id}": 2, "nightly": 1, "": 2, "secret": 0}


def test_too_many_templates_and_wrong_ones_are_refused(registry: CollectorRegistry) -> None:
    with pytest.raises(ValueError, match="at most 100"):
        metrics.enable(registry, lock_names=[f"a{n}" for n in range(101)])
    with pytest.raises(TypeError):
        metrics.enable(registry, lock_names="orders/{id}")
    with pytest.raises(TypeError):
        metrics.enable(registry, lock_names=[3])  # type: ignore[list-item]


def test_every_measure_is_exported(
    registry: CollectorRegistry, exported: lockfast.Subscription
) -> None:
    names = {metric.name for metric in registry.collect()}
    assert {measure.name.removesuffix("_total") for measure in MEASURES} == names


WORKER = """
import os, sys, time
import lockfast
from lockfast import metrics
subscription = metrics.enable()  # before the fork, as a gunicorn master with --preload does
client = lockfast.connect(sys.argv[1], ttl=30)
with client.lock("of the parent"):
    subscription.flush()
    for child in range(2):
        if os.fork() == 0:
            with client.lock(f"child {child}"):
                for _ in range(5):
                    with client.lock(f"pair {child}"):
                        pass
                subscription.flush()
                open(f"{sys.argv[2]}/held.{child}", "w").close()
                while not os.path.exists(f"{sys.argv[2]}/go"):
                    time.sleep(0.01)
            client.close()
            subscription.flush()
            os._exit(0)
    os.wait(), os.wait()
subscription.flush()
"""


def test_several_processes(tmp_path: Path) -> None:
    """Workers forked after enable(): their counts are summed, gauges are per process."""
    from prometheus_client.multiprocess import MultiProcessCollector

    folder = tmp_path / "prometheus"
    folder.mkdir()
    process = subprocess.Popen(
        [sys.executable, "-c", WORKER, f"sqlite://{tmp_path}/locks.db", str(tmp_path)],
        env={**os.environ, "PROMETHEUS_MULTIPROC_DIR": str(folder)},
        stderr=subprocess.PIPE,
        text=True,
    )
    until = time.monotonic() + 60
    while not all((tmp_path / f"held.{child}").exists() for child in range(2)):
        assert time.monotonic() < until
        assert process.poll() is None, process.stderr and process.stderr.read()
        time.sleep(0.02)

    def scrape() -> CollectorRegistry:
        registry = CollectorRegistry()
        MultiProcessCollector(registry, path=str(folder))  # type: ignore[no-untyped-call]
        return registry

    labels = {"store": "sqlite", "mode": "exclusive"}
    assert value(scrape(), "lockfast_locks_held", **labels) == 3
    (tmp_path / "go").touch()
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 0, errors
    assert value(scrape(), "lockfast_acquire_total", outcome="granted", **labels) == 13
    assert value(scrape(), "lockfast_hold_seconds_count", **labels) == 13
