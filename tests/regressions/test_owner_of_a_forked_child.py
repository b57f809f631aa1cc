"""A forked child showed the pid of its parent as the owner of its locks."""

from __future__ import annotations

import os
from pathlib import Path

import lockfast
from lockfast.api import settings


def owner_in_child(client: lockfast.Client) -> str:
    """Return what a forked child sees as the owner of a lock that it holds."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            told = client.owner
            with client.lock("a"):
                seen = client.inspect("a").holders[0].owner
            os.write(writing, f"{told}\n{seen}".encode())
        finally:
            os._exit(0)
    os.close(writing)
    os.waitpid(pid, 0)
    with os.fdopen(reading) as pipe:
        told, seen = pipe.read().split("\n")
    assert told == seen
    return seen.replace(str(pid), "PID")


def test_it_has_a_label_of_its_own(tmp_path: Path) -> None:
    with lockfast.connect(f"sqlite://{tmp_path}/locks.db") as client:
        with client.lock("warm-up"):
            pass
        own = settings.default_owner()
        assert client.owner == own
        assert owner_in_child(client) == own.replace(str(os.getpid()), "PID")


def test_a_label_that_was_given_stays(tmp_path: Path) -> None:
    with lockfast.connect(f"sqlite://{tmp_path}/locks.db", owner="mine") as client:
        assert owner_in_child(client) == "mine"
