"""Which node answers at each address of a store.

Two names may lead to the same node. Counted twice, it would fake a majority. So every node reports
an id when a client connects, and all addresses at which the same id was found are refused.
"""

from __future__ import annotations

from collections.abc import Sequence

from lockfast.errors import StoreError, StoreMisconfiguredError


class Identities:
    """The id found last at each address. All connections of a store share it, on any thread."""

    def __init__(self, labels: Sequence[str]) -> None:
        self._labels = labels
        self._ids = [""] * len(labels)
        self._has_twins = False

    def note(self, node: int, id_: str) -> None:
        self._ids[node] = id_
        known = [each for each in self._ids if each]
        self._has_twins = len(set(known)) < len(known)

    def objection(self, node: int) -> StoreError | None:
        """Return the error if another address leads to the same node."""
        if not self._has_twins or self._ids.count(self._ids[node]) < 2:
            return None
        return StoreMisconfiguredError(
            self._labels[node],
            "is also reached by another name in the URL",
            "name each node once",
        )
