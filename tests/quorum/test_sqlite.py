"""Nodes in SQLite files: several processes, lost and damaged files, the rules of node.py."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from pathlib import Path
from time import monotonic

import pytest

import lockfast
from lockfast.errors import AcquireTimeoutError, StoreError
from lockfast.stores.memory import wall_us
from lockfast.stores.quorum import messages as m
from lockfast.stores.quorum import opening, sqlite
from lockfast.stores.quorum.node import Node
from tests.quorum.test_reference import SKEW_US, START_US, STEPS, Script

SEEDS = 10
PROCESSES = 3
KILLS = 6
PATIENCE_S = 60.0
SKEW_S = 0.1

WORKER = """
import os, sys, lockfast
url, log = sys.argv[1:]
fd = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
with lockfast.connect(url, ttl=1) as client:
    while True:
        with client.lock("a") as lease:
            os.write(fd, f"+ {os.getpid()} {lease.token}\\n".encode())
            lease.check()
            os.write(fd, f"- {os.getpid()} {lease.token}\\n".encode())
"""


def url_in(directory: Path, options: str = "") -> str:
    files = ",".join(str(directory / f"{name}.db") for name in "abc")
    return f"quorum+sqlite://{files}?skew={SKEW_S}{options}"


def test_processes_that_are_killed_never_overlap(tmp_path: Path) -> None:
    url, log = url_in(tmp_path), tmp_path / "log"
    log.touch()

    def start() -> subprocess.Popen[bytes]:
        return subprocess.Popen([sys.executable, "-c", WORKER, url, str(log)])

    def wait_for_grants(count: int) -> list[str]:
        until_s = monotonic() + PATIENCE_S
        while len(lines := log.read_text().splitlines()) < count:
            assert monotonic() < until_s, f"only {len(lines)} lines"
        return lines

    workers = [start() for _ in range(PROCESSES)]
    killed: set[str] = set()
    try:
        for number in range(KILLS):
            lines = wait_for_grants(len(log.read_text().splitlines()) + 4)
            # The one that was inside last is perhaps still inside.
            inside = lines[-1].split()[1]
            victim = next((w for w in workers if str(w.pid) == inside), workers[number % PROCESSES])
            victim.kill()
            victim.wait()
            killed.add(str(victim.pid))
            workers[workers.index(victim)] = start()
        wait_for_grants(len(log.read_text().splitlines()) + 4)
    finally:
        for worker in workers:
            worker.kill()
            worker.wait()
    held, tokens = "", [0]
    for line in log.read_text().splitlines():
        sign, process, token = line.split()
        if sign == "+":
            assert not held or held in killed, f"{process} entered while {held} was inside"
            tokens.append(int(token))
        held = process if sign == "+" else ""
    assert tokens == sorted(set(tokens))


def test_a_forked_child_opens_the_files_again(tmp_path: Path) -> None:
    with lockfast.connect(url_in(tmp_path)) as client, client.lock("a") as lease:
        child = os.fork()
        if not child:
            status = 1
            try:
                status = 0 if client.lock("a").try_acquire() is None else 2
            finally:
                os._exit(status)
        assert os.waitpid(child, 0)[1] == 0
        lease.check()
        with client.lock("b"):
            pass


def test_lost_files_do_not_take_tokens_back(tmp_path: Path) -> None:
    with lockfast.connect(url_in(tmp_path)) as client:
        with client.lock("a"):
            pass
        # The files are new, and the last one may have refused that ballot as too low.
        created_us = wall_us()
        while wall_us() < created_us + 2 * round(SKEW_S * 1_000_000):
            pass
        held = client.lock("a").acquire()
        (tmp_path / "a.db").unlink()
        with lockfast.connect(url_in(tmp_path)) as other:
            assert other.lock("a").try_acquire() is None, "the others are a majority"
        held.release()
        for name in "abc":
            (tmp_path / f"{name}.db").unlink()
        with client.lock("a") as lease:
            assert lease.token > held.token


def test_after_a_reboot_the_node_has_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with lockfast.connect(url_in(tmp_path)) as client:
        held = client.lock("a").acquire()
        monkeypatch.setattr(sqlite, "boot_id", lambda: "another boot")
        for node in opening._nodes[tuple(str(tmp_path / f"{name}.db") for name in "abc")].each:
            node.close()
        with lockfast.connect(url_in(tmp_path)) as other, other.lock("a") as lease:
            assert lease.token > held.token


def test_a_damaged_file_is_a_dead_node(tmp_path: Path) -> None:
    with lockfast.connect(url_in(tmp_path), connect_timeout=0.3) as client:
        (tmp_path / "a.db").write_bytes(b"this is no database" * 100)
        (tmp_path / "a.db").chmod(0o600)
        with client.lock("a"):
            pass
        (tmp_path / "b.db").write_bytes(b"this is no database" * 100)
        with pytest.raises(StoreError, match=r"1 of 3 nodes answered, 2 are needed.*damaged"):
            client.lock("a").acquire(timeout=0)


def test_a_new_file_is_silent_if_asked_for(tmp_path: Path) -> None:
    with lockfast.connect(url_in(tmp_path, "&silence=30"), ttl=10) as client:
        with pytest.raises(AcquireTimeoutError):
            client.lock("a").acquire(timeout=0.2)


@pytest.mark.parametrize("seed", range(SEEDS))
def test_the_file_answers_as_the_rules_say(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """Two processes' handles of one file take turns, so nothing may be kept outside of it."""
    clock = [START_US - 10_000_000]
    monkeypatch.setattr(sqlite, "wall_us", lambda: clock[0])
    reference, requests = Node(SKEW_US), Script(seed)
    reference.floor = clock[0] + SKEW_US
    nodes = [sqlite.SqliteNode(tmp_path / "a.db", "test", SKEW_US, 0) for _ in range(2)]
    for node in nodes:
        node.apply(m.ReadSessions("", 1))
    for step, node in zip(range(STEPS), itertools.cycle(nodes), strict=False):
        request = requests.next()
        clock[0] = requests.wall_us
        expected = reference.apply(request, clock[0] // 1000, clock[0])
        assert node.apply(request) == expected, f"seed {seed}, step {step}: {request}"
    for node in nodes:
        node.close()
