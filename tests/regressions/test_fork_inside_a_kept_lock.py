"""A forked child that left the block of a retained lock hung if another thread was using it.

The child inherited the mutex of the local queue locked, by a thread that does not exist there.
"""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path

import pytest

import lockfast


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")  # fork, with threads
def test_the_child_is_told_and_not_hung(tmp_path: Path) -> None:
    with lockfast.connect(f"sqlite://{tmp_path}/locks.db") as client:
        lease = client.lock("a", retain=True).acquire()
        (keep,) = client._retained_locks.values()
        inside, go_on = threading.Event(), threading.Event()

        def in_the_middle() -> None:
            with keep._mutex:
                inside.set()
                go_on.wait(60)

        other = threading.Thread(target=in_the_middle)
        other.start()
        inside.wait(60)
        child = os.fork()
        if child == 0:
            signal.alarm(30)  # a child that hangs must end all the same
            try:
                lease.release()
            except lockfast.LeaseLostError as error:
                os._exit(0 if "forked" in error.reason else 2)
            os._exit(3)
        go_on.set()
        other.join()

        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        lease.release()
