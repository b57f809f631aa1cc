"""The mutex under which the client of `lockfast.lock` is created, once for all threads."""

from __future__ import annotations

import threading
from contextlib import AbstractContextManager
from typing import Any

from lockfast.runtimes.platform import at_fork

# Re-entrant: a signal handler may call `lockfast.lock` during the first call of its thread.
_mutex = threading.RLock()


def default_mutex() -> AbstractContextManager[Any]:
    return _mutex


def _after_fork_in_child() -> None:
    global _mutex
    _mutex = threading.RLock()  # another thread of the parent may have locked it


at_fork(after_in_child=_after_fork_in_child)
