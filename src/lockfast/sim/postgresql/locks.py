"""Locks of transactions: advisory locks and row locks, shared or exclusive, with one queue each.

As in PostgreSQL, a request that conflicts with a waiting one waits behind it, even if it could be
granted beside the holders. A lock is held to the end of its transaction.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from typing import NamedTuple


class Request(NamedTuple):
    """A lock that a step yields to request it; the step receives whether it was granted."""

    key: Hashable
    is_shared: bool = False
    is_try: bool = False


class _Waiter(NamedTuple):
    owner: object
    is_shared: bool
    granted: Callable[[], None]


class _Lock:
    __slots__ = ("holders", "queue")

    def __init__(self) -> None:
        self.holders: dict[object, bool] = {}
        """For each owner, whether its lock is shared."""
        self.queue: list[_Waiter] = []

    def blockers(self, owner: object, is_shared: bool, place: int) -> Iterator[object]:
        """Yield the owners that must release, or be granted, before this request can be granted."""
        for holder, holds_shared in self.holders.items():
            if holder is not owner and not (is_shared and holds_shared):
                yield holder
        for waiter in self.queue[:place]:
            if waiter.owner is not owner and not (is_shared and waiter.is_shared):
                yield waiter.owner


class Locks:
    """All locks of a server."""

    def __init__(self) -> None:
        self._locks: dict[Hashable, _Lock] = {}
        self._held: dict[object, list[Hashable]] = {}
        self._waiting: dict[object, Hashable] = {}

    def take(self, owner: object, request: Request) -> bool:
        """Grant a lock now and return True, or return False if it conflicts."""
        key, is_shared, _ = request
        lock = self._locks.get(key)
        if lock is None:
            lock = self._locks[key] = _Lock()
        held = lock.holders.get(owner)
        if held is not None and (is_shared or not held):
            return True
        if any(lock.blockers(owner, is_shared, len(lock.queue))):
            return False
        self._grant(lock, owner, request.key, is_shared)
        return True

    def wait(self, owner: object, request: Request, granted: Callable[[], None]) -> None:
        """Queue for a lock that `take` refused; `granted` is called at most once."""
        self._locks[request.key].queue.append(_Waiter(owner, request.is_shared, granted))
        self._waiting[owner] = request.key

    def give_up(self, owner: object) -> None:
        """Remove the owner from the queue in which it waits, if any."""
        key = self._waiting.pop(owner, None)
        if key is not None:
            lock = self._locks[key]
            lock.queue = [waiter for waiter in lock.queue if waiter.owner is not owner]
            self._serve(key)

    def release(self, owner: object) -> None:
        """Release all locks of an owner and leave its queue, at the end of a transaction."""
        self.give_up(owner)
        for key in self._held.pop(owner, ()):
            lock = self._locks[key]
            del lock.holders[owner]
            self._serve(key)

    def is_deadlocked(self, owner: object) -> bool:
        """Return whether the owner is part of a cycle of waiting transactions."""
        seen: set[int] = set()
        ahead = list(self._blockers_of(owner))
        while ahead:
            other = ahead.pop()
            if other is owner:
                return True
            if id(other) not in seen:
                seen.add(id(other))
                ahead += self._blockers_of(other)
        return False

    def _blockers_of(self, owner: object) -> Iterator[object]:
        key = self._waiting.get(owner)
        if key is None:
            return
        lock = self._locks[key]
        for place, waiter in enumerate(lock.queue):
            if waiter.owner is owner:
                yield from lock.blockers(owner, waiter.is_shared, place)

    def _grant(self, lock: _Lock, owner: object, key: Hashable, is_shared: bool) -> None:
        if owner not in lock.holders:
            self._held.setdefault(owner, []).append(key)
        lock.holders[owner] = is_shared

    def _serve(self, key: Hashable) -> None:
        lock = self._locks[key]
        granted = []
        place = 0
        while place < len(lock.queue):
            waiter = lock.queue[place]
            if any(lock.blockers(waiter.owner, waiter.is_shared, place)):
                place += 1
                continue
            del lock.queue[place]
            del self._waiting[waiter.owner]
            self._grant(lock, waiter.owner, key, waiter.is_shared)
            granted.append(waiter.granted)
        if not lock.holders and not lock.queue:
            del self._locks[key]
        for tell in granted:
            tell()
