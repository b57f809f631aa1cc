"""A live holder could be expelled instead of a dead one, and Ctrl-C leaked descriptors.

A claim that began to wait opened a descriptor of the process ahead, and closed it when done.
Another thread might at that moment be about to read that this descriptor's process had died; if the
number had been reused for the next process by then, that process was declared dead. So only the
listening thread opens and closes them.
"""

from __future__ import annotations

import os
import subprocess

import pytest

from lockfast.core.commands import Blocker
from lockfast.ports import WAKE_DIED
from lockfast.runtimes.threads import run
from lockfast.stores.sqlite import processes
from lockfast.stores.sqlite.wake_listener import SqliteWakeListener

pytestmark = pytest.mark.skipif(not processes.identity(), reason="deaths cannot be seen here")


def blocker(child: subprocess.Popen[bytes], session: str) -> Blocker:
    boot, namespace, _, _ = processes.identity().split(":")
    process = f"{boot}:{namespace}:{child.pid}:{processes._start_ticks(child.pid)}"
    return Blocker(session, 1, "owner", process, 0, True, 17, 0)


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_callers_open_and_close_nothing() -> None:
    listener = SqliteWakeListener("ours", True, lambda wake: None, lambda inbox: None)
    with subprocess.Popen(["sleep", "60"]) as first, subprocess.Popen(["sleep", "60"]) as second:
        before = descriptors()
        listener.watch_over(1, [blocker(first, "first")])
        listener.watch_over(2, [blocker(second, "second")])
        assert descriptors() == before
        assert run(listener.listen(1000)) == []  # interrupted, so that it opens them
        assert descriptors() == before + 2
        listener.watch_over(1, ())
        assert descriptors() == before + 2

        first.kill()
        first.wait()
        second.kill()
        second.wait()
        heard = [*run(listener.listen(1000)), *run(listener.listen(0))]

        assert [wake.session for wake in heard if wake.what == WAKE_DIED] == ["second"]
        assert descriptors() == before
    listener.close()
