"""The threads runtime: every port blocks, so a coroutine never suspends."""

from __future__ import annotations

import itertools
import os
import random
import threading
from collections.abc import Callable, Coroutine
from contextlib import AbstractContextManager, suppress
from typing import Any, TypeVar

from lockfast.runtimes.platform import at_fork, now_ms, now_us

T = TypeVar("T")

_actor_numbers = itertools.count(1)
_process = os.getpid()
"""Cached pid; only a fork changes it."""
_here = threading.local()


def run(job: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine of flow code to completion in the current thread."""
    try:
        job.send(None)
    except StopIteration as finished:
        result: T = finished.value
        return result
    job.close()
    raise RuntimeError("flow code suspended in the threads runtime")


class ThreadSignal:
    """A flag for one waiting thread, built on a lock that `set` releases."""

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
            return  # already set

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
            # Release the lock again, because the flag stays set. A concurrent `set` may have
            # released it first.
            with suppress(RuntimeError):
                self._lock.release()
        return self._is_set


class ThreadsRuntime:
    """Clock, waiting and background jobs for blocking code."""

    def __init__(self) -> None:
        self._random = random.SystemRandom()

    now_ms = staticmethod(now_ms)
    now_us = staticmethod(now_us)

    def signal(self) -> ThreadSignal:
        return ThreadSignal()

    def mutex(self) -> AbstractContextManager[Any]:
        # Re-entrant: a signal handler may release a lease while this thread holds the mutex.
        return threading.RLock()

    def spawn(self, job: Callable[[], Coroutine[Any, Any, None]], name: str) -> None:
        threading.Thread(target=lambda: run(job()), name=name, daemon=True).start()

    def random(self) -> float:
        # A separate generator, so as not to disturb a program that seeds `random`.
        return self._random.random()

    def unique(self) -> str:
        return f"{self._random.getrandbits(64):016x}"

    def actor(self) -> str:
        # Not the thread's ident, which Python reuses for later threads.
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


at_fork(after_in_child=_after_fork_in_child)
