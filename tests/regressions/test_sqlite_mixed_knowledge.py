"""A step that mixed cached and newer rows is repeated, and does not fail.

The SQLite store worked on cached rows, on condition that no other process had written. Rows not in
the cache were read anew, so a step could combine an old queue with a new claim: revoking a lock
that another process had just taken raised a bare KeyError. Found by comparing three writers of one
file with the model.
"""

from __future__ import annotations

from pathlib import Path

from lockfast.core import commands as c
from lockfast.stores.sqlite.file import SqliteFile

A = c.Place("lock", "a", "exclusive")
SEND_MS = 5000


def test_a_step_on_rows_of_two_instants_is_done_again(tmp_path: Path) -> None:
    one, other = (SqliteFile(tmp_path / "locks.db", "stdlib") for _ in range(2))
    try:
        one.apply(c.Enter("s1", 1, (A,), open=c.Open("s1", 30_000, "one")), SEND_MS)
        one.apply(c.Leave("s1", 1, (A,)), SEND_MS)  # `one` has cached that the lock is free
        other.apply(c.Enter("s2", 1, (A,), open=c.Open("s2", 30_000, "other")), SEND_MS)
        assert one.apply(c.Revoke("s2", 1, "admin", "enough"), SEND_MS) == c.Done(found=True)
        assert isinstance(other.apply(c.Look("s2", 1), SEND_MS), c.Gone)
        assert isinstance(one.apply(c.Enter("s1", 2, (A,)), SEND_MS), c.Granted)
    finally:
        one.close()
        other.close()
