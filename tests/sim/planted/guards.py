"""Bugs planted in the guard of the resource that a lock protects."""

from __future__ import annotations

from contextlib import ExitStack

from lockfast.guards import memory
from lockfast.sim.runtime import MS
from tests.sim.planted.bugs import bug, replace


@bug("a guard that lets a former holder pass", promise="register")
def _(stack: ExitStack) -> None:
    replace(stack, memory, "judge", lambda admission, floor: None)


@bug("a guard that forgets who read", promise="register")
def _(stack: ExitStack) -> None:
    right = memory.MemoryGuard.admit

    def wrong(
        self: memory.MemoryGuard,
        resource: str,
        token: int,
        *,
        shared: bool = False,
        once: bool = False,
    ) -> None:
        floors = dict(self._floors)
        right(self, resource, token, shared=shared, once=once)
        self._floors = {mark: min(floor, token - 60 * MS) for mark, floor in floors.items()}

    replace(stack, memory.MemoryGuard, "admit", wrong)
