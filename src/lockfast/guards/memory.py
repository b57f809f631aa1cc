"""A guard for resources that live in this process."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

from lockfast.guards.admission import Mark, admitted, compared_marks, judge, plan_admission

T = TypeVar("T")


class MemoryGuard:
    """Floors in this process's memory, safe to share among threads.

    They are gone when the process ends. `admit` is one step, and the write that follows is
    another: an old holder admitted just in time may still write after its successor. Where
    threads write to the same resource use `execute`, which lets nobody in between.

    With `tree=True` names are paths: a write makes older tokens stale on its name, on
    every name above and on every name beneath, and leaves siblings alone.
    """

    def __init__(self, *, tree: bool = False) -> None:
        self.tree = tree
        # Re-entrant, so that an operation may ask its own guard.
        self._mutex = threading.RLock()
        self._floors: dict[Mark, int] = {}

    def admit(self, resource: str, token: int, *, shared: bool = False, once: bool = False) -> None:
        """Let the holder of `token` through to `resource`, or raise StaleTokenError.

        Passes unless a newer exclusive token was admitted before; from then on older ones
        are refused. With `once`, a token passes a single time. With `shared`, the token is
        compared but not remembered.
        """
        admission = plan_admission(
            resource, token, shared=shared, once=once, tree=self.tree, guard="memory"
        )
        with self._mutex:
            judge(admission, self._highest(admission.compared))
            for mark in admission.raised:
                self._floors[mark] = max(token, self._floors.get(mark, 0))
        admitted(admission)

    def execute(
        self,
        resource: str,
        token: int,
        operation: Callable[[], T],
        *,
        shared: bool = False,
        once: bool = False,
    ) -> T:
        """Call `operation` if the token is admitted; no other token is until it has returned."""
        with self._mutex:
            self.admit(resource, token, shared=shared, once=once)
            return operation()

    def floor(self, resource: str) -> int:
        """The oldest token that would pass now, 0 when every token would."""
        marks = compared_marks(resource, tree=self.tree)
        with self._mutex:
            return self._highest(marks)

    def _highest(self, marks: tuple[Mark, ...]) -> int:
        return max(self._floors.get(mark, 0) for mark in marks)
