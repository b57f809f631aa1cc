"""A deleted gate file is replaced by one that all processes use.

Processes that had it open continued with the deleted file, later ones created another: two gates,
and transactions of one side overlapped checkpoints of the other.
"""

from __future__ import annotations

from typing import Any

from tests.processes.crew import Crew, until
from tests.stores import roles


def test_those_before_and_those_after_meet_at_one_gate(crew: Crew) -> None:
    before = crew.client(ttl=20)
    kept = before.lock("kept").acquire()
    old: Any = before._core.store
    gate = old._file._gate
    (crew.directory / "locks.db-gate").unlink()
    after = crew.start(roles.hold)
    after.hears("held")
    assert before.lock("a").try_acquire() is None, "the database is still one"

    def is_noticed() -> bool:
        with before.lock("b"):
            return bool(gate.is_current())

    until(is_noticed, "the old gate is left")
    probe = crew.start(roles.try_gate)
    probe.hears("ready")
    try:
        gate.enter(float("inf"))
        probe.tell("try")
        probe.hears("shut")
    finally:
        gate.leave()
    after.tell("release")
    after.hears("released")
    with before.lock("a").acquire(timeout=30):
        kept.check()
    kept.release()
