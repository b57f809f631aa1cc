"""The runtime of blocking code: every port blocks, so a coroutine never suspends."""

from __future__ import annotations

import itertools
import os
import random
import threading
from collections.abc import Callable, Coroutine
from contextlib import AbstractContextManager, suppress
from typing import Any, TypeVar

from lockfast.runtimes.clock import now_ms

T = TypeVar("T")

_actor_numbers = itertools.count(1)
_process = os.getpid()
"""Kept, not asked for each time: it only changes by a fork."""
_here = threading.local()


def run(job: Coroutine[Any, Any, T]) -> T:
    """Run flow code to its end, right here."""
    try:
        job.send(None)
    except StopIteration as finished:
        result: T = finished.value
        return result
    job.close()
    raise RuntimeError("flow code suspended on the threads runtime")


class ThreadSignal:
    """One waiter's flag: a lock that is released to set it."""

    __slots__ = ("_is_set", "_lock")

    def __init__(self) -> None:
        self._is_set = False
        self._lock = threading.Lock()
        self._lock.acquire()

    def set(self) -> None:
        self._is_set = True
        try:
            self._lock.release()
        except RuntimeError:
            return  # it was set before

    def is_set(self) -> bool:
        return self._is_set

    async def wait(self, timeout_ms: int | None) -> bool:
        return self.wait_blocking(timeout_ms)

    def wait_blocking(self, timeout_ms: int | None) -> bool:
        if self._is_set:
            return True
        timeout = -1 if timeout_ms is None else min(timeout_ms / 1000, threading.TIMEOUT_MAX)
        if timeout_ms is not None and timeout_ms <= 0:
            return self._is_set
        if self._lock.acquire(timeout=timeout):
            # Back again, for it stays set; whoever sets it once more may be quicker.
            with suppress(RuntimeError):
                self._lock.release()
        return self._is_set


class ThreadsRuntime:
    """Clock, waiting and background work for blocking code."""

    def __init__(self) -> None:
        self._random = random.SystemRandom()

    now_ms = staticmethod(now_ms)

    def signal(self) -> ThreadSignal:
        return ThreadSignal()

    def mutex(self) -> AbstractContextManager[Any]:
        # Re-entrant: a signal handler may release a lease in the middle of anything.
        return threading.RLock()

    def spawn(self, job: Callable[[], Coroutine[Any, Any, None]], name: str) -> None:
        threading.Thread(target=lambda: run(job()), name=name, daemon=True).start()

    def random(self) -> float:
        # Not the module's own generator: a program that seeds that one gets what it expects.
        return self._random.random()

    def unique(self) -> str:
        return f"{self._random.getrandbits(64):016x}"

    def actor(self) -> str:
        # Not the thread's ident, which the next thread may be given again.
        try:
            actor: str = _here.actor
        except AttributeError:
            actor = _here.actor = f"thread-{next(_actor_numbers)}"
        return actor

    @staticmethod
    def process() -> int:
        return _process


def _after_fork_in_child() -> None:
    global _process
    _process = os.getpid()


os.register_at_fork(after_in_child=_after_fork_in_child)
