"""memory://[name]: one table per name, shared by all clients of this process."""

from __future__ import annotations

import os
import threading

from lockfast.ports import Store
from lockfast.runtimes.clock import now_ms
from lockfast.runtimes.threads import ThreadsRuntime
from lockfast.stores.memory import MemoryStore, MemoryTable
from lockfast.stores.registry import Face, StoreUrl

_tables: dict[tuple[str, str], MemoryTable] = {}
_mutex = threading.Lock()


def open_store(url: StoreUrl, face: Face, *, death_watch: bool = True) -> Store:
    url.refuse_other_options()
    # Keepers wait on threads in both faces, and nothing here blocks a caller.
    with _mutex:
        table = _tables.setdefault((url.location, url.namespace), MemoryTable(now_ms))
    return MemoryStore(table, ThreadsRuntime(), url.label)


def _after_fork_in_child() -> None:
    """The child has a memory of its own, in which nobody holds anything."""
    global _mutex
    _mutex = threading.Lock()
    for table in _tables.values():
        table.start()


os.register_at_fork(after_in_child=_after_fork_in_child)
