"""A generator function cannot be decorated with a lock.

Calling one only creates the generator: its body ran after the lock had been released.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import lockfast


def rows() -> Iterator[int]:
    yield 1


def test_it_is_refused() -> None:
    with lockfast.connect("memory://decorated-generator") as client:
        with pytest.raises(TypeError, match="is a generator: take the lock inside it"):
            client.lock("a")(rows)
