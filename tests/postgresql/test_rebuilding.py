"""What doctor derives from claims is what the lock table stores, and a repair is compatible."""

from __future__ import annotations

from typing import Any

import pytest

from lockfast.conformance.commands import Commands
from lockfast.core import rows as r
from lockfast.core.commands import HOLDING, REVOKED, WAITING, Place
from lockfast.core.memory_rows import MemoryRows
from lockfast.core.rows import Claim, ResourceRow
from lockfast.core.table import Table
from lockfast.sim.promises import NOTHING, snapshot
from lockfast.stores.postgresql.rebuilding import derive, disagreements, repair

STEPS = 80
SEEDS = range(12)
A = Place("lock", "a", "exclusive")
READ = Place("lock", "a", "shared")


class Stored:
    """The rows of a table, as doctor reads them."""

    def __init__(self, rows: MemoryRows) -> None:
        def every(family: str) -> list[tuple[str, Any]]:
            return rows.scan(f"{family}{r.SEPARATOR}", f"{family}{r.AFTER_SEPARATOR}", 9999)

        self.claims: list[Claim] = [r.copied(row) for _, row in every("c")]
        self.sessions = [row.id for _, row in every("s")]
        self.resources: dict[tuple[str, str], ResourceRow] = {
            (row.kind, row.name): row for _, row in every("r")
        }
        self.lines = {
            (line, *key.split(r.SEPARATOR, 3)[1:]): ref
            for line in "hvw"
            for key, ref in every(line)
        }

    def disagreements(self) -> list[str]:
        derived = derive(self.claims, self.resources)
        return disagreements(derived, self.resources, self.lines)  # type: ignore[arg-type]


@pytest.mark.parametrize("seed", SEEDS)
def test_intact_rows_agree_with_their_claims(seed: int) -> None:
    rows = MemoryRows()
    table, commands, seen = Table(rows), Commands(seed), NOTHING
    for _ in range(STEPS):
        step = commands.next(seen)
        table.apply(*step)
        stored = Stored(rows)
        assert stored.disagreements() == [], step
        seen = snapshot(table, *step[1:], seen)
    repaired = repair(stored.claims, stored.sessions)
    assert not repaired.orphans
    assert all(claim.state == WAITING for claim in repaired.changed)


def _claim(session: str, token: int, *places: Place) -> Claim:
    return Claim(session, 1, places, HOLDING, f"{token:032}", "", 0, 0, token)


def test_of_holders_that_conflict_the_oldest_stay() -> None:
    first, second = _claim("ann", 1, READ), _claim("bob", 2, READ)
    writer, other = _claim("cat", 3, A), _claim("dan", 4, READ)
    repaired = repair([writer, other, second, first], ["ann", "bob", "cat", "dan"])
    assert repaired.changed == [writer]
    assert (writer.state, writer.places) == (REVOKED, ())
    assert {first.state, second.state, other.state} == {HOLDING}


def test_a_claim_without_a_session_is_an_orphan() -> None:
    orphan, kept = _claim("ann", 1, A), _claim("bob", 2, A)
    repaired = repair([orphan, kept], ["bob"])
    assert (repaired.orphans, repaired.changed) == ([orphan], [])
