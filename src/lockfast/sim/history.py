"""What clients asked, were told and believed, in the order of true time.

A history is a list of entries, in a file one JSON object per line:

    {"at": 120, "op": 1, "by": "c1", "ask": "acquire", "places": [["lock", "a", "exclusive", 1, 0]],
     "wait": true, "head_start": 0}
    {"at": 300, "op": 1, "got": "queued"}
    {"at": 950, "op": 1, "got": "granted", "token": 17}
    {"at": 990, "op": 2, "by": "c1", "ask": "release", "of": 1}
    {"at": 990, "op": 1, "got": "over", "why": "released"}
    {"at": 999, "op": 2, "got": "done"}

`at` is in microseconds of one clock for all. An operation is asked once and ends once:
`granted`, `busy`, `timeout`, `unknown` (perhaps done), `refused` for acquire, `done`, `lost` or
`unknown` for release. `queued` says it stood in line by then. `over` is the instant from which
the holder itself no longer relies on the lease: it asked to release it, its deadline passed by
its own clock, it was told, or it died. `convert` asks for another `mode` of an operation's lease
and ends in `granted` (to the writer's mode: with a new token) or not.

Other entries: `write` and `read` of a guarded register, `fault`, `heal`, `resumed`, `revoke`
(with `n` 0 of a whole session), `resize`, `store` (what the store itself did, for the picture),
and of recorded histories `lives`: until when a session is relied on at the latest.

Recorded histories come from `LOCKFAST_HISTORY`: see `stores/recorded.py`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, TypeAlias

from lockfast.core.commands import Place

Entry: TypeAlias = dict[str, Any]


class History:
    """Entries as they come."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self._ops = 0

    def ask(self, at: int, by: str, what: str, **about: object) -> int:
        """A client is about to ask; returns the operation's number."""
        self._ops += 1
        self.entries.append({"at": at, "op": self._ops, "by": by, "ask": what, **about})
        return self._ops

    def got(self, at: int, op: int, what: str, **about: object) -> None:
        """What became of it."""
        self.entries.append({"at": at, "op": op, "got": what, **about})

    def note(self, at: int, **about: object) -> None:
        """Something that is not a client's operation."""
        self.entries.append({"at": at, **about})

    @property
    def operations(self) -> int:
        """How many were asked."""
        return self._ops


def write_history(entries: Iterable[Entry], path: Path) -> None:
    """One JSON object per line."""
    with path.open("w", encoding="utf-8") as file:
        for entry in entries:
            file.write(json.dumps(entry, separators=(",", ":")) + "\n")


def read_history(path: Path) -> list[Entry]:
    """Raises ValueError that names the line which is no entry."""
    return list(_entries(path))


def _entries(path: Path) -> Iterator[Entry]:
    with path.open(encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            try:
                entry = json.loads(line)
            except ValueError as error:
                raise ValueError(f"{path}:{number}: not a JSON object: {error}") from None
            if not isinstance(entry, dict) or not isinstance(entry.get("at"), int):
                raise ValueError(f"{path}:{number}: an entry is an object with an integer `at`")
            if "places" in entry:
                entry["places"] = tuple(Place(*place) for place in entry["places"])
            yield entry
