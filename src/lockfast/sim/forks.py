"""Copies of a table's rows and of a model that cost little, for the search of all states."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Hashable, Sequence
from operator import attrgetter
from typing import Any

from lockfast.core.commands import Event
from lockfast.core.rows import Claim, ResourceRow, Row, Session, Shard
from lockfast.sim.model import Model


def _copier(kind: type) -> Callable[[Any], Any]:
    fields = attrgetter(*kind.__slots__)  # type: ignore[attr-defined]
    return lambda row: kind(*fields(row))


_copy_resource = _copier(ResourceRow)


def _resource(row: ResourceRow) -> ResourceRow:
    other: ResourceRow = _copy_resource(row)
    other.held, other.reserved = row.held.copy(), row.reserved.copy()
    return other


_COPY: dict[type, Callable[[Any], Any]] = {
    Shard: _copier(Shard),
    Session: _copier(Session),
    Claim: _copier(Claim),
    ResourceRow: _resource,
    str: lambda row: row,
}


class ForkRows:
    """Rows that are shared between forks: whoever gets one gets a copy. There is no log."""

    __slots__ = ("_keys", "_rows")

    logs = False

    def __init__(self) -> None:
        self._rows: dict[str, Row] = {}
        self._keys: list[str] = []

    def fork(self) -> ForkRows:
        other = ForkRows()
        other._rows, other._keys = self._rows.copy(), self._keys.copy()
        return other

    def get(self, key: str) -> Any:
        row = self._rows.get(key)
        return None if row is None else _COPY[type(row)](row)

    def put(self, key: str, row: Row) -> None:
        if key not in self._rows:
            insort(self._keys, key)
        self._rows[key] = row

    def add(self, key: str, row: Row) -> None:
        self.put(key, row)

    def delete(self, key: str) -> None:
        if self._rows.pop(key, None) is not None:
            del self._keys[bisect_left(self._keys, key)]

    def scan(
        self, start: str, stop: str, limit: int, reverse: bool = False
    ) -> list[tuple[str, Any]]:
        keys = self._keys
        found = keys[bisect_left(keys, start) : bisect_left(keys, stop)]
        if reverse:
            found.reverse()
        return [(key, self.get(key)) for key in found[:limit]]

    def append(self, event: Event) -> None:
        """Nobody reads it."""

    def events(self, after: int, limit: int) -> list[Event]:
        return []

    def oldest(self) -> int | None:
        return None

    def key(self, now_ms: int) -> Hashable:
        """All that can make a difference, and nothing else: spans instead of instants, the
        order of claims and tokens instead of their numbers."""
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
    """A model that goes on from the same state, apart from this one."""
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
