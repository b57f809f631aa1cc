"""How a session of a lock database is woken: datagrams from peers, deaths from the kernel."""

from __future__ import annotations

import os
import random
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

import lockfast
from lockfast.core.commands import WAKE_EVENTS, WAKE_GRANTED, WAKE_LOOK, Blocker, Wake
from lockfast.flow.acquire import acquire
from lockfast.flow.holding import Phase
from lockfast.ports import WAKE_DIED
from lockfast.runtimes.threads import run
from lockfast.stores.sqlite import processes
from lockfast.stores.sqlite.wake_listener import SqliteWakeListener, WakeSender

PATIENCE_MS = 30_000


@pytest.fixture
def heard() -> list[Wake]:
    return []


@pytest.fixture
def listener(heard: list[Wake]) -> Iterator[SqliteWakeListener]:
    made = SqliteWakeListener("session-1", True, heard.append, lambda inbox: None)
    yield made
    made.close()


@pytest.fixture
def wake_sender() -> Iterator[WakeSender]:
    made = WakeSender()
    yield made
    made.close()


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    """A process that does nothing until it is killed."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        yield process
        process.kill()


def hear(listener: SqliteWakeListener, timeout_ms: int = PATIENCE_MS) -> Sequence[Wake]:
    return run(listener.listen(timeout_ms))


def until(listener: SqliteWakeListener, condition: Callable[[], object]) -> None:
    """Listen until a condition is true."""
    give_up = time.monotonic() + PATIENCE_MS / 1000
    while not condition() and time.monotonic() < give_up:
        hear(listener, 100)


def port_of(inbox: str) -> int:
    return int(inbox.partition("@")[0])


def deaths(listener: SqliteWakeListener, timeout_ms: int = PATIENCE_MS) -> list[str]:
    """Return the sessions of processes that died; wait for at least one."""
    until = time.monotonic() + timeout_ms / 1000
    found: list[str] = []
    while not found and time.monotonic() < until:
        found += [wake.session for wake in hear(listener, 20) if wake.what == WAKE_DIED]
    return found


def identity_of(pid: int) -> str:
    boot, namespace, _, _ = processes.identity().split(":")
    return f"{boot}:{namespace}:{pid}:{processes._start_ticks(pid)}"


def blocker(process: str, session: str = "dead") -> Blocker:
    return Blocker(session, 1, "owner", process, 0, True, 17, 0)


# ── datagrams ────────────────────────────────────────────────────────────────────────


def test_what_is_told_is_heard(
    listener: SqliteWakeListener, wake_sender: WakeSender, heard: list[Wake]
) -> None:
    wake = Wake(listener.inbox, "session-1", 7, WAKE_GRANTED, 17)
    wake_sender.tell(wake)
    hear(listener)
    assert heard == [wake]


def test_words_for_others_are_not_heard(
    listener: SqliteWakeListener, wake_sender: WakeSender, heard: list[Wake]
) -> None:
    """The port may have belonged to another session before."""
    wake_sender.tell(Wake(listener.inbox, "session-0", 7, WAKE_GRANTED))
    wake_sender.tell(Wake(listener.inbox, "session-1", 8, WAKE_LOOK))
    until(listener, lambda: heard)
    assert [(wake.session, wake.n) for wake in heard] == [("session-1", 8)]


def test_words_for_another_machine_or_namespace_are_not_sent(
    listener: SqliteWakeListener, wake_sender: WakeSender, heard: list[Wake]
) -> None:
    port, _, here = listener.inbox.partition("@")
    nowhere = ("", port, f"{port}@", f"{port}@elsewhere", "nonsense", "nonsense@", "@", "#", "@#")
    nonsense = (f"x@{here}", f"-1@{here}", f"{10**30}@{here}", f"70000@{here}", f"@{here}")
    for inbox in (*nowhere, *nonsense):
        wake_sender.tell(Wake(inbox, "session-1", 1, WAKE_LOOK))
    hear(listener, 20)
    assert heard == []


def test_what_comes_without_the_secret_is_not_heard(
    listener: SqliteWakeListener, wake_sender: WakeSender, heard: list[Wake]
) -> None:
    """Any process may send to a port; only one that can read the lock database knows the secret."""
    port = port_of(listener.inbox)
    secret = listener.inbox.partition("#")[2].encode()
    words = b"session-1 1 granted 17"
    noise = random.Random(7)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as stranger:
        for text in (b"", b" ", b"session-1", words, b" " + words, b"0" * 16 + b" " + words):
            stranger.sendto(text, ("127.0.0.1", port))
        for text in (b"x", b"1 nonsense 17", b"1 granted x", b"1 granted", words[:-1] + b"\xff"):
            stranger.sendto(secret + b" session-1 " + text, ("127.0.0.1", port))
        for _ in range(100):
            stranger.sendto(noise.randbytes(noise.randrange(600)), ("127.0.0.1", port))
        stranger.sendto(secret + b" session-1 9 look 0", ("127.0.0.1", port))
    until(listener, lambda: heard)
    assert [(wake.n, wake.what) for wake in heard] == [(9, WAKE_LOOK)]


def test_a_forged_word_lets_nobody_in(tmp_path: Path, wake_sender: WakeSender) -> None:
    """A grant in a wake is trusted without a read, so it must not be forgeable."""
    url = f"sqlite://{tmp_path}/locks.db"
    with lockfast.connect(url) as holder, lockfast.connect(url) as client:
        with holder.lock("a"):
            waiting = client._core.holding(client.lock("a")._ask())
            thread = threading.Thread(target=lambda: run(acquire(client._core, waiting, None)))
            thread.start()
            while waiting.phase is not Phase.WAITING:
                time.sleep(0.001)
            session = waiting.session
            assert session is not None
            port = port_of(session.listener.inbox)
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as stranger:
                for secret in ("", " ", "0000000000000000 "):
                    words = f"{secret}{session.id} {waiting.n} granted 99"
                    stranger.sendto(words.encode(), ("127.0.0.1", port))
            told = threading.Event()
            session.events_changed.append(told.set)
            wake_sender.tell(Wake(session.listener.inbox, session.id, 0, WAKE_EVENTS))
            assert told.wait(PATIENCE_MS / 1000), "it reads what was sent before"
            assert waiting.phase is Phase.WAITING
        thread.join()
        assert waiting.phase is Phase.HELD


def test_a_poke_ends_listening_from_any_thread(listener: SqliteWakeListener) -> None:
    for _ in range(1000):
        listener.interrupt()
    assert hear(listener) == []
    assert hear(listener, 1) == []


def test_a_closed_ear_can_be_poked_and_told(wake_sender: WakeSender) -> None:
    closed: list[str] = []
    made = SqliteWakeListener("session-1", True, lambda wake: None, closed.append)
    inbox = made.inbox
    made.close()
    made.close()
    made.interrupt()
    made.watch_over(1, [blocker(processes.identity())])
    wake_sender.tell(Wake(inbox, "session-1", 1, WAKE_LOOK))
    assert closed == [inbox]


# ── deaths ───────────────────────────────────────────────────────────────────────────


def test_a_death_is_heard(listener: SqliteWakeListener, sleeper: subprocess.Popen[bytes]) -> None:
    listener.watch_over(1, [blocker(identity_of(sleeper.pid))])
    assert deaths(listener, 50) == []
    sleeper.kill()
    assert deaths(listener) == ["dead"]
    assert deaths(listener, 50) == [], "once"


def test_a_death_before_the_watch_is_heard(
    listener: SqliteWakeListener, sleeper: subprocess.Popen[bytes]
) -> None:
    identity = identity_of(sleeper.pid)
    sleeper.kill()
    sleeper.wait()
    listener.watch_over(1, [blocker(identity)])
    assert deaths(listener) == ["dead"]


def test_another_process_of_the_same_number_is_not_taken_for_it(
    listener: SqliteWakeListener, sleeper: subprocess.Popen[bytes]
) -> None:
    """The pid was reused: the process that is meant is dead."""
    boot, namespace, pid, start = identity_of(sleeper.pid).split(":")
    listener.watch_over(1, [blocker(f"{boot}:{namespace}:{pid}:{int(start) - 1}")])
    assert deaths(listener) == ["dead"]


@pytest.mark.parametrize("which", [0, 1])
def test_a_process_of_another_boot_or_namespace_is_not_judged(
    listener: SqliteWakeListener, sleeper: subprocess.Popen[bytes], which: int
) -> None:
    """It cannot be checked from here whether it lives, so its TTL decides."""
    parts = identity_of(sleeper.pid).split(":")
    parts[which] = "another"
    listener.watch_over(1, [blocker(":".join(parts))])
    sleeper.kill()
    assert deaths(listener, 50) == []


def test_one_does_not_watch_over_oneself(listener: SqliteWakeListener) -> None:
    before = len(os.listdir("/proc/self/fd"))
    listener.watch_over(1, [blocker(processes.identity()), blocker("")])
    assert hear(listener, 1) == []
    assert len(os.listdir("/proc/self/fd")) == before


def test_who_is_no_longer_in_the_way_is_not_watched(
    listener: SqliteWakeListener, sleeper: subprocess.Popen[bytes]
) -> None:
    identity = identity_of(sleeper.pid)
    before = len(os.listdir("/proc/self/fd"))
    listener.watch_over(1, [blocker(identity, "one")])
    listener.watch_over(2, [blocker(identity, "two")])
    hear(listener, 1)
    assert len(os.listdir("/proc/self/fd")) == before + 1, "one descriptor for one process"
    listener.watch_over(1, ())
    sleeper.kill()
    assert deaths(listener) == ["two"]
    assert len(os.listdir("/proc/self/fd")) == before


# ── looking once ─────────────────────────────────────────────────────────────────────


def wait_for_state(pid: int, state: str) -> None:
    give_up = time.monotonic() + PATIENCE_MS / 1000
    while processes._stat(pid)[0] != state:
        assert time.monotonic() < give_up
        time.sleep(0.01)


def test_a_process_has_ended_also_before_somebody_waits_for_it(
    sleeper: subprocess.Popen[bytes],
) -> None:
    identity = processes._identity(sleeper.pid)
    assert not processes.has_ended(identity)
    sleeper.kill()
    wait_for_state(sleeper.pid, processes.ZOMBIE)
    assert processes.has_ended(identity)
    sleeper.wait()
    assert processes.has_ended(identity)


def test_a_process_whose_first_thread_has_ended_lives() -> None:
    """Another of its threads may hold the lock."""
    script = (
        "import ctypes, threading, time; threading.Thread(target=time.sleep, args=(1000,)).start();"
        "ctypes.CDLL(None).pthread_exit(None)"
    )
    with subprocess.Popen([sys.executable, "-c", script]) as process:
        try:
            wait_for_state(process.pid, processes.ZOMBIE)
            assert not processes.has_ended(processes._identity(process.pid))
        finally:
            process.kill()


def test_a_process_with_the_number_of_another_is_another(
    sleeper: subprocess.Popen[bytes],
) -> None:
    boot, namespace, pid, start = processes._identity(sleeper.pid).split(":")
    assert processes.has_ended(f"{boot}:{namespace}:{pid}:{int(start) - 1}")
    assert not processes.has_ended(f"another boot:{namespace}:{pid}:{start}")
    assert not processes.has_ended(f"{boot}:another:{pid}:{start}")


def test_a_wake_for_another_network_namespace_is_not_sent(
    listener: SqliteWakeListener, wake_sender: WakeSender, heard: list[Wake]
) -> None:
    """There the same port may belong to another process."""
    elsewhere = listener.inbox.replace("@", "@elsewhere-")
    wake_sender.tell(Wake(elsewhere, "session-1", 1, WAKE_LOOK))
    wake_sender.tell(Wake(listener.inbox, "session-1", 2, WAKE_LOOK))
    until(listener, lambda: heard)
    assert [wake.n for wake in heard] == [2]
