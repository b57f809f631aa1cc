"""A guard for resources that live in this process."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

from lockfast.guards.admission import (
    Mark,
    admitted,
    checked_result,
    compared_marks,
    judge,
    plan_admission,
)

T = TypeVar("T")


class MemoryGuard:
    """Floors in this process's memory, safe to share among threads.

    They are lost when the process ends. `admit` and the write that follows it are two steps: a
    former holder that was admitted just in time may still write after its successor. Where several
    threads write to one resource, use `execute`, which makes both one step.

    With `tree=True` names are paths: a write makes older tokens stale on its name, on all its
    ancestors and on all names below it, but not on siblings.
    """

    def __init__(self, *, tree: bool = False) -> None:
        self.tree = tree
        # Re-entrant, so that an operation may use its own guard.
        self._mutex = threading.RLock()
        self._floors: dict[Mark, int] = {}

    def admit(self, resource: str, token: int, *, shared: bool = False, once: bool = False) -> None:
        """Admit the holder of `token` to `resource`, or raise StaleTokenError.

        A token is admitted unless a newer exclusive one was admitted before; from then on, older
        tokens are refused. With `once`, a token is admitted a single time. With `shared`, the token
        is compared but not recorded.
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
        """Call `operation` if the token is admitted; until it returns, no other token is."""
        with self._mutex:
            self.admit(resource, token, shared=shared, once=once)
            return checked_result(operation())

    def floor(self, resource: str) -> int:
        """Return the lowest token that would be admitted now; 0 if any token would."""
        marks = compared_marks(resource, tree=self.tree)
        with self._mutex:
            return self._highest(marks)

    def _highest(self, marks: tuple[Mark, ...]) -> int:
        return max(self._floors.get(mark, 0) for mark in marks)
