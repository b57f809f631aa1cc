"""A scene with quick settings. Stories are played without pauses between captions."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from lockfast.playground.scene import Scene


@pytest.fixture
def scene() -> Iterator[Scene]:
    made = Scene(3)
    made.story.caption_s = 0.0
    made.do("set", {"ttl": 2, "work": 0.1})
    yield made
    made.close()
    assert made.is_idle
