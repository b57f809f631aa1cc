"""Real processes: contention, a stop past the TTL, a stale write, a deadlock, a store restart.

Afterwards every metric and span must have the value that the scenario implies.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from lockfast.telemetry.measures import HISTOGRAM, MEASURES
from tests.servers.redis import RedisServer

LOCK = {"store": "redis", "mode": "exclusive"}


class Process:
    """A worker, and the lines it prints."""

    def __init__(self, url: str, owner: str, folder: Path) -> None:
        worker = Path(__file__).with_name("scenario_worker.py")
        self._process = subprocess.Popen(
            [sys.executable, str(worker), url, owner, str(folder / "data.db")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.answer()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def pipe(self) -> int:
        assert self._process.stdout is not None
        return self._process.stdout.fileno()

    def send(self, what: str, *arguments: object) -> None:
        assert self._process.stdin is not None
        print(json.dumps([what, *arguments]), file=self._process.stdin, flush=True)

    def answer(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, f"worker exited with {self._process.wait()}"
        return json.loads(line)

    def do(self, what: str, *arguments: object) -> Any:
        self.send(what, *arguments)
        return self.answer()

    def kill(self) -> None:
        if self._process.poll() is None:
            os.kill(self.pid, signal.SIGCONT)
            self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()


class Figures:
    """The metrics and spans of one worker."""

    def __init__(self, raw: dict[str, Any]) -> None:
        self._samples: dict[tuple[str, frozenset[tuple[str, str]]], float] = {}
        for family in text_string_to_metric_families(raw["metrics"]):
            for sample in family.samples:
                self._samples[sample.name, frozenset(sample.labels.items())] = sample.value
        self.names = {name for name, _ in self._samples}
        self.spans: list[dict[str, Any]] = raw["spans"]

    def of(self, metric: str, /, **labels: str) -> float:
        return self._samples.get((metric, frozenset(labels.items())), 0.0)

    def spans_of(self, name: str, lock: str) -> list[dict[str, Any]]:
        return [
            span
            for span in self.spans
            if span["name"] == name and span["attributes"].get("lockfast.name") == lock
        ]


@pytest.fixture
def server() -> Iterator[RedisServer]:
    with RedisServer(None, "--appendonly", "yes", "--appendfsync", "always") as server:
        yield server


def until(condition: Callable[[], object]) -> None:
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


@pytest.mark.timeout(240)
def test_every_figure_says_what_happened(server: RedisServer, tmp_path: Path) -> None:
    url = server.url()
    a, b = (Process(url, owner, tmp_path) for owner in ("a", "b"))
    try:
        figures_a, figures_b = play(a, b, server)
    finally:
        a.kill()
        b.kill()

    # Contention: a held `shop`, b waited behind it and then got it.
    assert figures_b.of("lockfast_acquire_contended_total", **LOCK) >= 1
    (waited,) = [
        span
        for span in figures_b.spans_of("acquire lock", "shop")
        if span["attributes"]["lockfast.outcome"] == "granted"
    ]
    (holder,) = figures_a.spans_of("acquire lock", "shop")
    assert waited["links"] == [holder["trace"]]
    assert figures_a.spans_of("hold lock", "shop")
    assert "queued" in waited["events"]
    assert figures_b.of("lockfast_queue_length_at_entry_sum", **LOCK) >= 1
    assert figures_b.of("lockfast_acquire_total", outcome="busy", **LOCK) == 1

    # The stop: a lost `books`, and its later write was refused.
    assert figures_a.of("lockfast_lease_lost_total", store="redis", reason="expired") == 1
    (lost,) = figures_a.spans_of("hold lock", "books")
    assert "lost" in lost["events"]
    assert figures_a.of("lockfast_fence_rejected_total", guard="sqlite") == 1
    assert figures_b.of("lockfast_fence_admitted_total", guard="sqlite") == 1

    # The deadlock: found once, and one of the two gave up.
    both = (figures_a, figures_b)
    assert sum(each.of("lockfast_deadlocks_total", store="redis") for each in both) == 1
    gave_up = [each.of("lockfast_acquire_total", outcome="deadlock", **LOCK) for each in both]
    assert sorted(gave_up) == [0, 1]

    # The restart: keep-alives failed, the store is up again, and the lease was kept.
    assert figures_a.of("lockfast_renew_total", store="redis", outcome="failed") >= 1
    assert figures_a.of("lockfast_store_up", store="redis") == 1
    (kept,) = figures_a.spans_of("hold lock", "kept")
    assert "renewed" in kept["events"]

    for figures in both:
        granted = figures.of("lockfast_acquire_total", outcome="granted", **LOCK)
        assert figures.of("lockfast_acquire_wait_seconds_count", **LOCK) == granted
        assert figures.of("lockfast_hold_seconds_count", **LOCK) == granted
        assert figures.of("lockfast_locks_held", **LOCK) == 0
        assert figures.of("lockfast_waiters", **LOCK) == 0
        assert figures.of("lockfast_keepalive_seconds_count", store="redis") >= 1
        assert figures.of("lockfast_token_age_seconds", store="redis") == 0
    exported = figures_a.names | figures_b.names
    for measure in MEASURES:
        sample = f"{measure.name}_count" if measure.kind == HISTOGRAM else measure.name
        assert sample in exported or measure.name == "leader_election_master_status"


def _first_to_answer(*processes: Process) -> Process:
    by_pipe = {process.pipe: process for process in processes}
    (ready, *_), _, _ = select.select(list(by_pipe), [], [], 60)
    return by_pipe[ready]


def play(a: Process, b: Process, server: RedisServer) -> tuple[Figures, Figures]:
    # Contention.
    a.do("acquire", "shop")
    assert b.do("try_once", "shop") is False
    b.do("begin", "shop")
    b.do("until_queued")
    a.do("release", "shop")
    b.do("end", "shop")
    b.do("release", "shop")

    # A stop past the TTL, and a stale write.
    stale = a.do("acquire", "books")
    os.kill(a.pid, signal.SIGSTOP)
    fresh = b.do("acquire", "books")
    assert fresh > stale
    assert b.do("write", "books", fresh) == "admitted"
    os.kill(a.pid, signal.SIGCONT)
    assert a.do("write", "books", stale) == "refused"
    assert a.do("release", "books") == "lost"
    b.do("release", "books")

    # A deadlock.
    a.do("acquire", "left")
    b.do("acquire", "right")
    a.send("cross", "left", "right")
    b.send("cross", "right", "left")
    # The victim releases what it holds, so that the other gets it.
    victim = _first_to_answer(a, b)
    other = b if victim is a else a
    assert victim.answer() == "deadlock"
    victim.do("release", "left" if victim is a else "right")
    assert other.answer() == "granted"
    other.do("release", "right" if victim is a else "left")

    # A restart of the store, shorter than the TTL.
    a.do("acquire", "kept", 12)
    server.kill()
    until(lambda: a.do("renewals", "failed") > 0)
    server.start()
    after = a.do("renewals", "ok")
    until(lambda: a.do("renewals", "ok") > after + 3)
    assert a.do("release", "kept") == "released"
    for each in (a, b):
        each.do("close")
    return Figures(a.do("figures")), Figures(b.do("figures"))
