"""Equal names are one lock, even if one of them is a member of an enum.

A member of `class Job(str, Enum)` equals its value but is formatted as `Job.NIGHTLY`: the lock's
row got another key than the plain name, and both could be held at once.
"""

from __future__ import annotations

from enum import Enum
from pathlib import Path

import pytest

import lockfast


class Job(str, Enum):  # noqa: UP042 — a StrEnum is formatted as its value
    NIGHTLY = "nightly"


@pytest.mark.parametrize("store", ["memory", "sqlite"])
def test_two_spellings_of_one_name_exclude_each_other(store: str, tmp_path: Path) -> None:
    url = "memory://enum" if store == "memory" else f"sqlite://{tmp_path}/locks.db"
    with lockfast.connect(url) as client:
        with client.lock(Job.NIGHTLY):
            assert client.lock("nightly").try_acquire() is None
        with client.lock("nightly"):
            assert client.lock(Job.NIGHTLY).try_acquire() is None
