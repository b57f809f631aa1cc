"""A holder of another user was taken for dead and lost its lock to a waiter.

To tell a process from a later one with the same pid, its start time is read from /proc. Where /proc
hides the processes of other users (hidepid), that failed, and the process was considered dead. A
reused pid must not count as the original process either.
"""

from __future__ import annotations

import os
import subprocess

import pytest

from lockfast.stores.sqlite import processes

pytestmark = pytest.mark.skipif(not processes.identity(), reason="deaths cannot be seen here")


def test_hidden_process_is_not_dead(monkeypatch: pytest.MonkeyPatch) -> None:
    identity = processes.identity()

    def hidden(pid: int) -> str:
        raise FileNotFoundError(f"/proc/{pid}/stat")

    monkeypatch.setattr(processes, "_start_ticks", hidden)

    assert processes.open_pidfd(identity) is None


def test_dead_process_is_gone() -> None:
    with subprocess.Popen(["sleep", "60"]) as child:
        boot, namespace, _, _ = processes.identity().split(":")
        identity = f"{boot}:{namespace}:{child.pid}:{processes._start_ticks(child.pid)}"
        alive = processes.open_pidfd(identity)
        assert alive is not None
        os.close(alive)
        child.kill()
    with pytest.raises(processes.Gone):
        processes.open_pidfd(identity)


def test_another_process_of_the_same_number_is_not_the_one() -> None:
    *known, start = processes.identity().split(":")

    with pytest.raises(processes.Gone):
        processes.open_pidfd(":".join([*known, str(int(start) + 1)]))
