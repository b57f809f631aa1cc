"""What clients asked, were told and believed, in the order of true time.

A history is a list of entries, in a file one JSON object per line:

    {"at": 120, "op": 1, "by": "c1", "ask": "acquire", "places": [{"kind": "lock", "name": "a",
     "mode": "exclusive"}], "wait": true, "head_start": 0}
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
from typing import Any, Final, TypeAlias

from lockfast.core.codec import encode_place
from lockfast.sim.entries import Entries, HistoryError

Entry: TypeAlias = dict[str, Any]

LINE_MAX: Final = 1 << 20
"""Bytes of one entry."""


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


def encode_entry(entry: Entry) -> str:
    """Encode an entry as one line of JSON."""
    if "places" in entry:
        entry = {**entry, "places": [encode_place(place) for place in entry["places"]]}
    return json.dumps(entry, separators=(",", ":"))


def write_history(entries: Iterable[Entry], path: Path) -> None:
    """Write a history to a file."""
    with path.open("w", encoding="utf-8") as file:
        for entry in entries:
            file.write(encode_entry(entry) + "\n")


def read_history(path: Path) -> list[Entry]:
    """Read a history from outside; raises HistoryError that names the line that is wrong."""
    try:
        return list(_entries(path))
    except OSError as error:
        raise HistoryError(f"{path} cannot be read: {error.strerror}") from None


def _entries(path: Path) -> Iterator[Entry]:
    entries = Entries()
    with path.open("rb") as file:
        number = 0
        while line := file.readline(LINE_MAX + 1):
            number += 1
            if len(line) > LINE_MAX:
                raise HistoryError(f"{path}:{number}: longer than {LINE_MAX} bytes")
            if not line.strip():
                continue
            try:
                yield entries.check(json.loads(line))
            except HistoryError as error:
                raise HistoryError(f"{path}:{number}: {error}") from None
            except (ValueError, RecursionError) as error:
                raise HistoryError(f"{path}:{number}: not a JSON object: {error}") from None
