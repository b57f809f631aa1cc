"""A gate whose file was deleted is made anew for all who use the lock file.

Those who had it open went on with the deleted one, those who came later made another:
two gates, and transactions of one side overlapped checkpoints of the other.
"""

from __future__ import annotations

import fcntl
import time

import pytest

import lockfast
from tests.processes.crew import Crew
from tests.stores import roles


def test_old_and_new_processes_meet_at_one_gate(crew: Crew) -> None:
    """Else those who came before and those who come after would stand before two gates."""
    before = crew.client()
    with before.lock("a"):
        pass
    (crew.directory / "locks.db-gate").unlink()
    after = crew.start(roles.hold)
    after.hears("held")
    with pytest.raises(lockfast.AcquireTimeoutError):
        before.lock("a").acquire(timeout=0)
    probe = crew.start(roles.try_gate)
    probe.hears("ready")
    file = before._core.store._file  # type: ignore[attr-defined]
    with file._mutex:
        file._enter_gate(time.monotonic() + 10)
        probe.tell("try")
        probe.hears("shut")
        fcntl.lockf(file._gate, fcntl.LOCK_UN)
    probe.tell("try")
    probe.hears("open")
    after.tell("release")
    after.hears("released")
