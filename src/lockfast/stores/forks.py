"""Let stores begin anew in a forked child.

A child inherits what its parent knows of its sessions, the mutexes that other threads held, the
channel at which its parent listens, and the random bits that tell the claims of store objects
apart. It would wait for threads that do not exist, and be taken for its parent or its siblings.
"""

from __future__ import annotations

from typing import Final, Protocol
from weakref import WeakSet

from lockfast.runtimes.platform import at_fork


class Restartable(Protocol):
    def start(self) -> None:
        """Begin without sessions and without requests in flight."""
        ...


_stores: Final[WeakSet[Restartable]] = WeakSet()


def restart_in_children(store: Restartable) -> None:
    """Call `store.start()` in every child that this process forks."""
    _stores.add(store)


def _after_fork_in_child() -> None:
    for store in _stores:
        store.start()


at_fork(after_in_child=_after_fork_in_child)
