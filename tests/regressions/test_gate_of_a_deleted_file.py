"""The handle of a deleted lock database does not unlock the gate of the new one.

POSIX locks belong to the process. A database deleted and created again was opened twice in one
process, with two descriptors of one gate: unlocking or closing the old one unlocked the gate during
a transaction of the new one.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

import lockfast
from tests.processes.crew import Crew
from tests.stores import roles


def test_it_stays_shut(crew: Crew) -> None:
    old = crew.client(ttl=0.5, connect_timeout=0.1)
    lease = old.lock("a").acquire()
    delete_but_gate_of(crew.directory)
    new = crew.client()
    probe = crew.start(roles.try_gate)
    probe.hears("ready")
    probe.tell("try")
    probe.hears("open")
    file: Any = new._core.store
    file = file._file
    with file._mutex:
        file._gate.enter(time.monotonic() + 10)
        probe.tell("try")
        probe.hears("shut")
        with pytest.raises(lockfast.StoreError):
            old.lock("b").acquire()
        lease.lost.wait(30)
        probe.tell("try")
        probe.hears("shut")
        old.close()
        probe.tell("try")
        probe.hears("shut")
        file._gate.leave()
    probe.tell("try")
    probe.hears("open")
    with new.lock("a"):
        pass


def delete_but_gate_of(directory: Path) -> None:
    for path in directory.glob("locks.db*"):
        if not path.name.endswith("-gate"):
            path.unlink()
