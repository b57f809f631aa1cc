"""More locks at once than a claim may have is an error of the caller, not of the store.

It was a StoreError that printed every name.
"""

from __future__ import annotations

import pytest

import lockfast
from lockfast.core.commands import PLACES_MAX


def test_too_many_locks_at_once() -> None:
    with lockfast.connect("memory://") as client:
        with client.all(*(f"n{i}" for i in range(PLACES_MAX))):
            pass
        with pytest.raises(lockfast.LimitError) as caught:
            client.all(*(f"n{i}" for i in range(PLACES_MAX + 1))).acquire()
    assert (caught.value.value, caught.value.limit) == (PLACES_MAX + 1, PLACES_MAX)
    assert len(str(caught.value)) < 150


def test_too_deep_a_tree() -> None:
    with lockfast.connect("memory://") as client, pytest.raises(lockfast.LimitError):
        client.tree("/".join(["a"] * (PLACES_MAX + 1))).write().acquire()
