"""A guard for resources that live in this process."""

from __future__ import annotations

import threading

from lockfast.guards.admission import Mark, admitted, compared_marks, judge, plan_admission


class MemoryGuard:
    """Floors in this process's memory, safe to share among threads.

    They are gone when the process ends. `admit` is one step, but the write that follows
    is another: where threads write to the same resource, hold a lock of your own around
    both, or an old holder admitted just in time may still write after its successor.

    With `tree=True` names are paths: a write makes older tokens stale on its name, on
    every name above and on every name beneath, and leaves siblings alone.
    """

    def __init__(self, *, tree: bool = False) -> None:
        self._tree = tree
        self._mutex = threading.Lock()
        self._floors: dict[Mark, int] = {}

    def admit(self, resource: str, token: int, *, shared: bool = False, once: bool = False) -> None:
        """Let the holder of `token` through to `resource`, or raise StaleTokenError.

        Passes unless a newer exclusive token was admitted before; from then on older ones
        are refused. With `once`, a token passes a single time. With `shared`, the token is
        compared but not remembered.
        """
        admission = plan_admission(
            resource, token, shared=shared, once=once, tree=self._tree, guard="memory"
        )
        with self._mutex:
            judge(admission, self._highest(admission.compared))
            for mark in admission.raised:
                self._floors[mark] = max(token, self._floors.get(mark, 0))
        admitted(admission)

    def floor(self, resource: str) -> int:
        """The oldest token that would pass now, 0 when every token would."""
        marks = compared_marks(resource, tree=self._tree)
        with self._mutex:
            return self._highest(marks)

    def _highest(self, marks: tuple[Mark, ...]) -> int:
        return max(self._floors.get(mark, 0) for mark in marks)
