"""The hot row: one row of the database that carries the rows which were written last.

A transaction costs what it writes, and one page is the least it can write. So the counters of
the lock table, the rows that the last steps wrote and the last entries of the log are packed into
one row that fits a page, and a step updates that row and nothing else. When it is full, its
contents are moved to the tables (`SqliteRows.spill`), in the same transaction. A lock that is taken
and given back in between never gets there.

`recent` has a line per row: its key, a tab, and what became of it since the last spill:

    +text   added: the table of rows has no row of this key
    =text   changed: the table of rows may have an older one
    -       deleted: the table of rows may still have it

A row that was added and then deleted leaves no line. `log` has a line per event.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Final

from lockfast.core.rows import Meta
from lockfast.stores.sqlite.packing import UnreadableError

NEVER_MS: Final = 1 << 60

_FIRST: Final = f"INSERT INTO hot VALUES (1, '', 0, 0, {NEVER_MS}, 0, 0, '', '')"
SCHEMA: Final = (
    "CREATE TABLE hot (version INTEGER NOT NULL, boot TEXT NOT NULL, token INTEGER NOT NULL, "
    "position INTEGER NOT NULL, due_ms INTEGER NOT NULL, watchers INTEGER NOT NULL, "
    "log_until_ms INTEGER NOT NULL, recent TEXT NOT NULL, log TEXT NOT NULL)",
    _FIRST,
)

ADDED, CHANGED, DELETED = "+", "=", "-"

_LOAD: Final = (
    "SELECT version, boot, token, position, due_ms, watchers, log_until_ms, recent, log FROM hot"
)
_SAVE: Final = (
    "UPDATE hot SET version = ?, boot = ?, token = ?, position = ?, due_ms = ?, watchers = ?, "
    "log_until_ms = ?, recent = ?, log = ?"
)


class HotRow:
    """The row as this process knows it; up to date while its version is the stored one."""

    def __init__(self, execute: Callable[..., Any]) -> None:
        self._execute = execute
        self.version = -1
        """Incremented by every step that writes; -1 if unknown."""
        self.boot = ""
        self.meta = Meta()
        self.log_until_ms = 0
        """How long the log is kept; 0 if there is none."""
        self.recent: dict[str, str] = {}
        self.log: list[str] = []

    def is_current(self) -> bool:
        """Return True if no other process wrote since we loaded or saved."""
        (version,) = self._execute("SELECT version FROM hot").fetchone() or (0,)
        return version == self.version

    def load(self) -> None:
        """Load the row. Raises UnreadableError if no step could have written it."""
        found = self._execute(_LOAD).fetchone()
        if found is None:
            raise UnreadableError("hot", "")
        version, boot, token, position, due_ms, watchers, log_until_ms, recent, log = found
        numbers = (version, token, position, due_ms, watchers, log_until_ms)
        texts = (boot, recent, log)
        if {*map(type, numbers)} != {int} or {*map(type, texts)} != {str} or min(numbers) < 0:
            raise UnreadableError("hot", repr(found))
        self.recent = _parsed(recent)
        self.version = version
        self.boot = boot
        self.meta = Meta(token, position, due_ms, watchers)
        self.log_until_ms = log_until_ms
        self.log = log.split("\n") if log else []

    def recreate(self) -> None:
        """Replace a row that cannot be read; keep the last token if that can be read."""
        tokens = [token for (token,) in self._execute("SELECT token FROM hot").fetchall()]
        self._execute("DELETE FROM hot")
        self._execute(_FIRST)
        self.load()
        self.meta.token = max((token for token in tokens if type(token) is int), default=0)
        self.version = time.time_ns()  # Greater than any version that a process knows.

    def packed(self) -> tuple[str, str]:
        """Return the texts of `recent` and `log`."""
        recent = [f"{key}\t{change}" for key, change in self.recent.items()]
        return "\n".join(recent), "\n".join(self.log) if self.log else ""

    def save(self, recent: str, log: str) -> None:
        """Write the row, inside the transaction of a step."""
        version = self.version + 1
        meta = self.meta
        self._execute(
            _SAVE,
            (
                version,
                self.boot,
                meta.token,
                meta.position,
                meta.due_ms,
                meta.watchers,
                self.log_until_ms,
                recent,
                log,
            ),
        )
        self.version = version


def text_of(key: str, change: str) -> str | None:
    """Return the text of a row in `recent`; None if it is deleted. Raises UnreadableError."""
    if change[:1] in (ADDED, CHANGED):
        return change[1:]
    if change != DELETED:
        raise UnreadableError(key, change)
    return None


def _parsed(recent: str) -> dict[str, str]:
    if not recent:
        return {}
    # Neither keys nor texts contain a tab or a line break, so keys and changes alternate.
    parts = recent.replace("\n", "\t").split("\t")
    if len(parts) != 2 * (recent.count("\n") + 1):
        raise UnreadableError("hot", recent)
    return dict(zip(parts[::2], parts[1::2], strict=True))
