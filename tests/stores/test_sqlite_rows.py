"""Rows in the hot row, and rows that were spilled into the table."""

from __future__ import annotations

from pathlib import Path

from lockfast.core import commands as c
from lockfast.stores.sqlite import rows
from lockfast.stores.sqlite.file import SqliteFile

A = c.Place("lock", "a", "exclusive")
SEND_MS = 5000


def test_to_ask_for_none_of_a_line_does_not_empty_it(tmp_path: Path) -> None:
    """The waiting claims have been spilled: others have filled the hot row since."""
    file = SqliteFile(tmp_path / "locks.db", "stdlib")
    try:
        file.apply(c.Open("s", 600_000, "owner"), SEND_MS)
        enough = rows.HOT_MAX // 100  # no claim is smaller
        waiting = enough - 1
        for n in range(2 * enough):
            place = A if n < enough else A._replace(name=f"b{n}")
            file.apply(c.Enter("s", n + 1, (place,)), SEND_MS)
        for most in (0, 10):
            view = file.apply(c.Inspect("lock", "a", waiting_max=most), SEND_MS)
            assert isinstance(view, c.ResourceView)
            assert (len(view.waiting), view.waiting_count) == (most, waiting)
    finally:
        file.close()
