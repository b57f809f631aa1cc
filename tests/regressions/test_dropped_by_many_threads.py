"""A keeper failed when a caller processed dropped leases at the same moment.

Both saw that there was one left, and the second found none: IndexError, and all leases of the
session were lost with the keeper.
"""

from __future__ import annotations

from collections import deque

from lockfast.core.commands import Place
from lockfast.flow.holding import Ask, Holding
from lockfast.flow.session import Session
from lockfast.runtimes.threads import ThreadsRuntime


class TakenByAnother(deque[Holding]):
    """Contains something until it is accessed."""

    def popleft(self) -> Holding:
        self.clear()
        return super().popleft()


def test_another_was_quicker() -> None:
    session = Session(ThreadsRuntime(), 30_000, "owner", "")
    dropped = Holding(Ask((Place("lock", "orders/42", "exclusive"),), 30_000), "actor")
    session._finalized = TakenByAnother([dropped])

    session.release_finalized()

    assert not session._finalized
