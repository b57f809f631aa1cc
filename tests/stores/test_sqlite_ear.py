"""How a session on a lock file hears: datagrams from anybody, deaths from the kernel."""

from __future__ import annotations

import os
import random
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

import lockfast
from lockfast.core.commands import WAKE_GRANTED, WAKE_LOOK, Blocker, Wake
from lockfast.ports import WAKE_DIED
from lockfast.runtimes.threads import run
from lockfast.stores.sqlite import processes
from lockfast.stores.sqlite.ear import Mouth, SqliteEar

PATIENCE_MS = 30_000


@pytest.fixture
def ear() -> Iterator[SqliteEar]:
    made = SqliteEar("session-1", True, lambda inbox: None)
    yield made
    made.close()


@pytest.fixture
def mouth() -> Iterator[Mouth]:
    made = Mouth()
    yield made
    made.close()


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    """A process that does nothing until it is killed."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        yield process
        process.kill()


def hear(ear: SqliteEar, timeout_ms: int = PATIENCE_MS) -> Sequence[Wake]:
    return run(ear.listen(timeout_ms))


def deaths(ear: SqliteEar, timeout_ms: int = PATIENCE_MS) -> list[str]:
    """The sessions of processes that died, waiting for at least one."""
    until = time.monotonic() + timeout_ms / 1000
    found: list[str] = []
    while not found and time.monotonic() < until:
        found += [wake.session for wake in hear(ear, 20) if wake.what == WAKE_DIED]
    return found


def identity_of(pid: int) -> str:
    boot, namespace, _, _ = processes.identity().split(":")
    return f"{boot}:{namespace}:{pid}:{processes._start_ticks(pid)}"


def blocker(process: str, session: str = "dead") -> Blocker:
    return Blocker(session, 1, "owner", process, 0, True, 17, 0)


# ── datagrams ────────────────────────────────────────────────────────────────────────


def test_what_is_told_is_heard(ear: SqliteEar, mouth: Mouth) -> None:
    mouth.tell(Wake(ear.inbox, "session-1", 7, WAKE_GRANTED, 17))
    (wake,) = hear(ear)
    assert (wake.session, wake.n, wake.what) == ("session-1", 7, WAKE_GRANTED)
    assert wake.token == 0, "a token that came by a datagram could be anybody's"


def test_words_for_others_are_not_heard(ear: SqliteEar, mouth: Mouth) -> None:
    """A port may have been another session's before."""
    mouth.tell(Wake(ear.inbox, "session-0", 7, WAKE_GRANTED))
    mouth.tell(Wake(ear.inbox, "session-1", 8, WAKE_LOOK))
    heard = [*hear(ear)]
    if not heard:
        heard += hear(ear)
    assert [(wake.session, wake.n) for wake in heard] == [("session-1", 8)]


def test_words_for_another_machine_or_namespace_are_not_sent(ear: SqliteEar, mouth: Mouth) -> None:
    port, _, here = ear.inbox.partition("@")
    nowhere = ("", port, f"{port}@", f"{port}@elsewhere", "nonsense", "nonsense@", "@")
    nonsense = (f"x@{here}", f"-1@{here}", f"{10**30}@{here}", f"70000@{here}", f"@{here}")
    for inbox in (*nowhere, *nonsense):
        mouth.tell(Wake(inbox, "session-1", 1, WAKE_LOOK))
    assert hear(ear, 20) == []


def test_nonsense_is_not_heard_and_hurts_nobody(ear: SqliteEar, mouth: Mouth) -> None:
    """Anybody on the machine may write to a port."""
    port = int(ear.inbox.partition("@")[0])
    noise = random.Random(7)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as stranger:
        for text in (b"", b" ", b"session-1", b"session-1 x granted", b"session-1 1 nonsense"):
            stranger.sendto(text, ("127.0.0.1", port))
        for _ in range(100):
            stranger.sendto(noise.randbytes(noise.randrange(600)), ("127.0.0.1", port))
        stranger.sendto(b"session-1 9 look", ("127.0.0.1", port))
    heard: list[Wake] = []
    until = time.monotonic() + PATIENCE_MS / 1000
    while not heard and time.monotonic() < until:
        heard += hear(ear, 100)
    assert [(wake.n, wake.what) for wake in heard] == [(9, WAKE_LOOK)]


def test_a_forged_word_changes_nothing(tmp_path: Path) -> None:
    """Wakes are hints: whoever hears one looks for itself."""
    with lockfast.connect(f"sqlite://{tmp_path}/locks.db") as client:
        lease = client.lock("a").acquire()
        session = lease._holding.session
        assert session is not None
        port = int(session.ear.inbox.partition("@")[0])
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as stranger:
            for n in (0, 1, 2, -1, 10**30):
                for what in ("granted", "look", "ended", "events", "wanted"):
                    stranger.sendto(f"{session.id} {n} {what}".encode(), ("127.0.0.1", port))
        before = client.sessions()[0].renewals
        with client.lock("b", ttl=0.1) as other:
            while client.sessions()[0].renewals < before:
                assert not other.lost.wait(0.01)
        lease.check()
        lease.release()


def test_a_poke_ends_listening_from_any_thread(ear: SqliteEar) -> None:
    for _ in range(1000):
        ear.poke()
    assert hear(ear) == []
    assert hear(ear, 1) == []


def test_a_closed_ear_can_be_poked_and_told(mouth: Mouth) -> None:
    closed: list[str] = []
    made = SqliteEar("session-1", True, closed.append)
    inbox = made.inbox
    made.close()
    made.close()
    made.poke()
    made.watch_over(1, [blocker(processes.identity())])
    mouth.tell(Wake(inbox, "session-1", 1, WAKE_LOOK))
    assert closed == [inbox]


# ── deaths ───────────────────────────────────────────────────────────────────────────


def test_a_death_is_heard(ear: SqliteEar, sleeper: subprocess.Popen[bytes]) -> None:
    ear.watch_over(1, [blocker(identity_of(sleeper.pid))])
    assert deaths(ear, 50) == []
    sleeper.kill()
    assert deaths(ear) == ["dead"]
    assert deaths(ear, 50) == [], "once"


def test_a_death_before_the_watch_is_heard(
    ear: SqliteEar, sleeper: subprocess.Popen[bytes]
) -> None:
    identity = identity_of(sleeper.pid)
    sleeper.kill()
    sleeper.wait()
    ear.watch_over(1, [blocker(identity)])
    assert deaths(ear) == ["dead"]


def test_another_process_of_the_same_number_is_not_taken_for_it(
    ear: SqliteEar, sleeper: subprocess.Popen[bytes]
) -> None:
    """The pid was given away again: the one that was meant is dead."""
    boot, namespace, pid, start = identity_of(sleeper.pid).split(":")
    ear.watch_over(1, [blocker(f"{boot}:{namespace}:{pid}:{int(start) - 1}")])
    assert deaths(ear) == ["dead"]


@pytest.mark.parametrize("which", [0, 1])
def test_a_process_of_another_boot_or_namespace_is_not_judged(
    ear: SqliteEar, sleeper: subprocess.Popen[bytes], which: int
) -> None:
    """From here it cannot be told whether it lives: its TTL decides."""
    parts = identity_of(sleeper.pid).split(":")
    parts[which] = "another"
    ear.watch_over(1, [blocker(":".join(parts))])
    sleeper.kill()
    assert deaths(ear, 50) == []


def test_one_does_not_watch_over_oneself(ear: SqliteEar) -> None:
    before = len(os.listdir("/proc/self/fd"))
    ear.watch_over(1, [blocker(processes.identity()), blocker("")])
    assert hear(ear, 1) == []
    assert len(os.listdir("/proc/self/fd")) == before


def test_who_is_no_longer_in_the_way_is_not_watched(
    ear: SqliteEar, sleeper: subprocess.Popen[bytes]
) -> None:
    identity = identity_of(sleeper.pid)
    before = len(os.listdir("/proc/self/fd"))
    ear.watch_over(1, [blocker(identity, "one")])
    ear.watch_over(2, [blocker(identity, "two")])
    hear(ear, 1)
    assert len(os.listdir("/proc/self/fd")) == before + 1, "one descriptor for one process"
    ear.watch_over(1, ())
    sleeper.kill()
    assert deaths(ear) == ["two"]
    assert len(os.listdir("/proc/self/fd")) == before
