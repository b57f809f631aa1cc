"""Nothing the process inside the gate does elsewhere unlocks it; its death does.

The gate was a POSIX lock, which the system drops as soon as the process closes *any* descriptor of
the file: a thread that merely read the files in the directory let other processes in. A lock that
belongs to the open file description stays, but a forked child shares it: the child must not keep
the gate locked when its parent is killed inside.
"""

from __future__ import annotations

import fcntl
import os
import signal
import struct
import threading
import time
from typing import Any

import pytest

import lockfast
from lockfast.core.commands import Enter
from lockfast.core.table import Table
from tests.processes.crew import Crew, Link
from tests.stores import roles

PATIENCE_S = 30.0


def test_a_thread_that_reads_every_file(crew: Crew) -> None:
    client = crew.client()
    with client.lock("a"):
        pass
    probe = crew.start(roles.try_gate)
    probe.hears("ready")
    store: Any = client._core.store
    with store._file.behind_gate(time.monotonic() + PATIENCE_S):
        probe.tell("try")
        probe.hears("shut")

        def read_all() -> None:
            for path in crew.directory.iterdir():
                path.read_bytes()

        reader = threading.Thread(target=read_all)
        reader.start()
        reader.join()
        probe.tell("try")
        probe.hears("shut")
    probe.tell("try")
    probe.hears("open")


def fork_then_stop_inside(link: Link) -> None:
    """Fork a child that lives on, and stop in the middle of a step."""
    carry_out = Table.apply

    def apply(self, command, now_ms, wall_us):  # type: ignore[no-untyped-def]
        done = carry_out(self, command, now_ms, wall_us)
        if isinstance(command, Enter):
            os.kill(os.getpid(), signal.SIGSTOP)
        return done

    with link.connect() as client:
        with client.lock("before"):
            pass
        child = os.fork()
        if child == 0:
            signal.pause()
        link.say("child", child)
        Table.apply = apply  # type: ignore[method-assign]
        client.lock("inside").acquire()


def test_a_parent_killed_inside(crew: Crew) -> None:
    client = crew.client(connect_timeout=0.3)
    parent = crew.start(fork_then_stop_inside)
    (child,) = parent.hears("child")
    parent.await_stop()
    parent.kill()
    with client.lock("inside").acquire(timeout=PATIENCE_S) as lease:
        assert lease.state is lockfast.LeaseState.HELD
        os.kill(int(child), 0)  # it still exists


@pytest.mark.skipif(not hasattr(fcntl, "F_OFD_GETLK"), reason="the system has no such locks")
def test_a_database_is_marked_as_in_use_after_every_file_was_read(crew: Crew) -> None:
    """Otherwise the next process to open it truncates the wal-index that we have mapped."""
    client = crew.client()
    with client.lock("a"):
        pass
    for path in crew.directory.iterdir():
        path.read_bytes()
    for name, first in (("locks.db", 0x40000002), ("locks.db-shm", 128)):
        with (crew.directory / name).open("rb+") as opened:
            asked = struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, first, 1, 0)
            found = fcntl.fcntl(opened, fcntl.F_OFD_GETLK, asked)
        assert struct.unpack("hhqqi4x", found)[0] == fcntl.F_RDLCK, name


def use_and_close(link: Link) -> None:
    with link.connect() as client, client.lock("other"):
        pass
    link.say("closed")


def try_to_lock(link: Link) -> None:
    with link.connect() as client:
        link.say("busy" if client.lock("a").try_acquire() is None else "held")


def test_a_close_after_every_file_was_read(crew: Crew) -> None:
    """A process that closes the database must not delete the log that others write to.

    Reading the database and closing it drops SQLite's own locks, by which it knows that others
    use the database.
    """
    client = crew.client()
    with client.lock("a"):
        pass
    for path in crew.directory.iterdir():
        path.read_bytes()
    crew.start(use_and_close).hears("closed")
    with client.lock("a"):
        crew.start(try_to_lock).hears("busy")


def counting(link: Link, rounds: int) -> None:
    """Increment a counter under a lock while a thread reads every file of the directory."""
    directory = os.path.dirname(link.url.removeprefix("sqlite://"))
    over = threading.Event()

    def read_all() -> None:
        while not over.wait(0.002):
            for name in os.listdir(directory):
                with open(os.path.join(directory, name), "rb") as opened:
                    opened.read()

    reader = threading.Thread(target=read_all)
    reader.start()
    try:
        with link.connect(ttl=20) as client:
            for _ in range(rounds):
                with client.lock("count"):
                    with open(os.path.join(directory, "count.txt")) as counter:
                        count = int(counter.read())
                    with open(os.path.join(directory, "count.txt"), "w") as counter:
                        counter.write(str(count + 1))
    finally:
        over.set()
        reader.join()
    link.say("done")


def test_a_count_among_processes_that_read_every_file(crew: Crew) -> None:
    (crew.directory / "count.txt").write_text("0")
    children = [crew.start(counting, 60) for _ in range(3)]
    for child in children:
        child.hears("done")
    assert (crew.directory / "count.txt").read_text() == "180"
