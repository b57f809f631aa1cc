"""The client of `lockfast.lock`: created on first use, once for all threads."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

from lockfast.api.base import ClientBase
from lockfast.runtimes.platform import at_fork

ClientT = TypeVar("ClientT", bound=ClientBase)


class DefaultClient(Generic[ClientT]):
    """The default client of one API. A closed client is replaced on the next use."""

    def __init__(self, connect: Callable[[], ClientT]) -> None:
        self.client: ClientT | None = None
        self._connect = connect
        self._start()
        # In a forked child another thread of the parent may have locked the mutex.
        at_fork(after_in_child=self._start)

    def _start(self) -> None:
        # Re-entrant: a signal handler may call `lockfast.lock` during the first call of its thread.
        self._mutex = threading.RLock()

    def get(self) -> ClientT:
        client = self.client
        if client is None or client._core.closed:
            with self._mutex:
                client = self.client
                if client is None or client._core.closed:
                    client = self.client = self._connect()
        return client
