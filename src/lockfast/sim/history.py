"""What clients requested, received and believed, in the order of real time.

A history is a list of entries, in a file one JSON object per line:

    {"at": 120, "op": 1, "by": "c1", "ask": "acquire", "places": [{"kind": "lock", "name": "a",
     "mode": "exclusive"}], "wait": true, "head_start": 0}
    {"at": 300, "op": 1, "got": "queued"}
    {"at": 950, "op": 1, "got": "granted", "token": 17}
    {"at": 990, "op": 2, "by": "c1", "ask": "release", "of": 1}
    {"at": 990, "op": 1, "got": "over", "why": "released"}
    {"at": 999, "op": 2, "got": "done"}

`at` is in microseconds of one clock for all. An operation is requested once and ends once: with
`granted`, `busy`, `timeout`, `unknown` (perhaps done) or `refused` for acquire, with `done`, `lost`
or `unknown` for release. `queued` means that it was in the queue by then. `over` is the time from
which the holder no longer relies on the lease: it requested the release, its deadline passed by its
own clock, it learned of the loss, or it died. `convert` requests another `mode` for the lease of an
operation and ends with `granted` (exclusive mode: with a new token) or not. A recorded `acquire`
has the `owner` label of its session, which the timeline shows instead of `by`.

Other entries: `write` and `read` of a guarded register, `fault`, `heal`, `resumed`, `revoke` (with
`n` 0 for a whole session), `resize`, `store` (what the store itself did, for the timeline), and in
recorded histories `lives`, a keep-alive that succeeded (`until`: how long the client relies on its
session at most; `sent`: when the request left), `fails`, a keep-alive that did not, and `ends`: the
client `closed` the session, its deadline passed (`expired`), or the store had ended it (`lost`).

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
"""The maximum size of an entry in bytes."""


class History:
    """Collects entries."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self._ops = 0

    def ask(self, at: int, by: str, what: str, **about: object) -> int:
        """Record a request. Return the number of the operation."""
        self._ops += 1
        self.entries.append({"at": at, "op": self._ops, "by": by, "ask": what, **about})
        return self._ops

    def got(self, at: int, op: int, what: str, **about: object) -> None:
        """Record the outcome of an operation."""
        self.entries.append({"at": at, "op": op, "got": what, **about})

    def note(self, at: int, **about: object) -> None:
        """Record something that is not an operation of a client."""
        self.entries.append({"at": at, **about})

    @property
    def operations(self) -> int:
        """The number of operations."""
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
    """Read a history from a file. Raises HistoryError, which names the invalid line."""
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
