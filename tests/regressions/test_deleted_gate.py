"""Who comes before and who comes after the gate was deleted do not work on one table.

Those who had it open went on with the deleted one, those who came later made another:
two gates, and transactions of one side overlapped checkpoints of the other. Now the gate is
the head of the lock file: without it there are no locks, and whoever had it open is told.
"""

from __future__ import annotations

import pytest

import lockfast
from lockfast.stores.sqlite import file
from tests.processes.crew import Crew
from tests.stores import roles

PATIENCE = 30


@pytest.mark.parametrize("looks_every_ms", [0, 1_000_000])
def test_those_before_are_told(
    crew: Crew, monkeypatch: pytest.MonkeyPatch, looks_every_ms: int
) -> None:
    """At the latest when they would write to the table that others use now."""
    monkeypatch.setattr(file, "CHECK_EVERY_MS", looks_every_ms)
    before = crew.client(ttl=0.5)
    leases: list[lockfast.Lease] = []
    with before.lock("a"):
        pass
    (crew.directory / "locks.db-head").unlink()
    after = crew.start(roles.hold)
    (token,) = after.hears("held")
    with pytest.raises(lockfast.StoreError, match="deleted or replaced"):
        for i in range(1000):
            leases.append(before.lock(f"lock number {i}").acquire())
    assert all(lease.lost.wait(PATIENCE) for lease in leases)
    (held,) = crew.client().list()
    assert (held.name, held.holders[0].token) == ("a", int(token))
    after.tell("release")
    after.hears("released")
