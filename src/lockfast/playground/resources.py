"""The resources that workers write to: two balances, one of them behind a guard.

Every job reads a balance, works, and writes the balance plus one. So a balance should equal the
number of jobs that reported success; each missing job was overwritten by another.
"""

from __future__ import annotations

import threading
from collections import deque
from typing import Final, NamedTuple

from lockfast.errors import StaleTokenError
from lockfast.guards import MemoryGuard

WRITES_MAX: Final = 200


class Write(NamedTuple):
    """One attempt to write."""

    at_ms: int
    worker: str
    token: int
    value: int
    """The balance to write."""
    before: int
    stale: bool
    """A newer token had already been used."""
    refused: bool

    @property
    def corrupts(self) -> bool:
        return self.stale and not self.refused


class Resource:
    """A balance. With a guard it refuses stale tokens; without one it accepts all writes."""

    def __init__(self, name: str, guard: MemoryGuard | None = None) -> None:
        self.name = name
        self._guard = guard
        self._mutex = threading.Lock()
        self.balance = 0
        self.jobs = 0
        self.newest = 0
        """The newest token used so far."""
        self.refused = 0
        self.writes: deque[Write] = deque(maxlen=WRITES_MAX)

    @property
    def fenced(self) -> bool:
        return self._guard is not None

    @property
    def corrupted(self) -> bool:
        return self.balance != self.jobs

    def read(self, token: int) -> int:
        """Return the balance, for a job that is going to write it. Raises StaleTokenError.

        The guard admits the token now: otherwise an older holder could still write between this
        read and the write that follows it.
        """
        with self._mutex:
            if self._guard is not None:
                self._guard.admit(self.name, token)
            self.newest = max(self.newest, token)
            return self.balance

    def write(self, at_ms: int, worker: str, token: int, value: int) -> Write:
        """Write a balance unless the guard refuses the token; return the attempt."""
        with self._mutex:
            stale = token < self.newest
            refused = not self._admit(token)
            done = Write(at_ms, worker, token, value, self.balance, stale, refused)
            if refused:
                self.refused += 1
            else:
                self.balance = value
                self.jobs += 1
                self.newest = max(self.newest, token)
            self.writes.append(done)
            return done

    def _admit(self, token: int) -> bool:
        if self._guard is None:
            return True
        try:
            self._guard.admit(self.name, token)
        except StaleTokenError:
            return False
        return True
