"""A node in the memory of this process, for tests."""

from __future__ import annotations

import threading
from collections.abc import Callable

from lockfast.stores.memory import wall_us
from lockfast.stores.quorum.messages import Answer, FreeWake, Request
from lockfast.stores.quorum.node import SKEW_US, Node


class MemoryNode:
    """One node and its clock."""

    def __init__(self, now_ms: Callable[[], int], skew_us: int = SKEW_US) -> None:
        self._node = Node(skew_us)
        self._now_ms = now_ms
        self._mutex = threading.RLock()

    def apply(self, request: Request) -> tuple[Answer, list[FreeWake]]:
        with self._mutex:
            return self._node.apply(request, self._now_ms(), wall_us())

    def close(self) -> None:
        """Do nothing: the node stays, for other clients."""
