"""A forked child was mistaken for its parent and got a DeadlockError without a deadlock.

The wait graph is over actors. The first claim of a child still had its parent's actor, so a child
that waited for its parent's lock seemed to wait for itself.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import lockfast


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")  # fork, with threads
def test_a_child_is_somebody_else(tmp_path: Path) -> None:
    with lockfast.connect(f"sqlite://{tmp_path}/locks.db") as client:
        with client.lock("a"):
            parent = client.inspect("a").holders[0].actor
        heard, told = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                with client.lock("a"):
                    os.write(told, client.inspect("a").holders[0].actor.encode())
            finally:
                os._exit(0)
        os.waitpid(child, 0)
        os.close(told)

        with open(heard, "rb") as pipe:
            actor = pipe.read().decode()
        assert actor
        assert actor != parent
