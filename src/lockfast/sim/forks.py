"""Cheap copies of a table's rows and of a model, for the search of all states."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

from lockfast.core.memory_rows import MemoryRows
from lockfast.core.rows import Claim, ResourceRow, Session, copied
from lockfast.sim.model import Model


class ForkRows(MemoryRows):
    """Rows shared between forks: `get` returns a copy. There is no log."""

    __slots__ = ()

    logs = False

    def fork(self) -> ForkRows:
        other = ForkRows()
        other._rows, other._keys = self._rows.copy(), self._keys.copy()
        return other

    def get(self, key: str) -> Any:
        return copied(super().get(key))

    def scan(
        self, start: str, stop: str, limit: int, reverse: bool = False
    ) -> list[tuple[str, Any]]:
        return [(key, copied(row)) for key, row in super().scan(start, stop, limit, reverse)]

    def key(self, now_ms: int) -> Hashable:
        """Return everything that can make a difference: spans instead of instants, and the order of
        claims and tokens instead of their numbers."""
        rows = self._rows
        parts: list[Hashable] = []
        tokens: list[int] = []
        for key in self._keys:
            row = rows[key]
            if isinstance(row, Session):
                left_ms = 0 if row.ended else row.deadline_ms - now_ms
                parts.append((row.id, row.ended, left_ms, row.highest, row.unseen))
            elif isinstance(row, Claim):
                tokens.append(row.token)
                claim = (row.session, row.n, row.state, row.places, row.step, row.wants)
                parts.append((claim, row.passed))
            elif isinstance(row, ResourceRow):
                parts.append((row.name, row.sole, row.converting))
            elif isinstance(row, str) and key[0] in "hvw":
                parts.append((key[: key.rindex("\x1f")], row))
        parts.append(_order(tokens))
        return tuple(parts)


def _order(tokens: Sequence[int]) -> tuple[int, ...]:
    rising = sorted(tokens)
    return tuple(rising.index(token) for token in tokens)


def fork_model(model: Model) -> Model:
    """Return an independent model that continues from the same state."""
    other: Model = _like(model)
    other.sessions = {name: _like(session) for name, session in model.sessions.items()}
    for session in other.sessions.values():
        session.numbers = session.numbers.copy()
    other.claims = [_like(claim) for claim in model.claims]
    other.closed_ms, other.sizes = model.closed_ms.copy(), model.sizes.copy()
    other.log, other.wakes = [], []
    other._asking = None
    return other


def _like(thing: Any) -> Any:
    other = object.__new__(type(thing))
    other.__dict__.update(thing.__dict__)
    return other
