"""The guard in memory, shared among threads."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator

import pytest

from lockfast.errors import StaleTokenError
from lockfast.guards import MemoryGuard


@pytest.fixture
def restless_threads() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("restless_threads")
def test_of_many_threads_with_one_token_exactly_one_passes_once() -> None:
    guard = MemoryGuard(tree=True)
    # Comparing many floors gives another thread time to interfere.
    deep = "/".join("a" * 64)
    rounds = range(1, 501)
    start = threading.Barrier(4)
    passed: list[int] = []

    def race() -> None:
        for token in rounds:
            start.wait()
            try:
                guard.admit(deep, token, once=True)
            except StaleTokenError:
                continue
            passed.append(token)

    threads = [threading.Thread(target=race) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert passed == list(rounds)
