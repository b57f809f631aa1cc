"""Every `connect` to a file that was no lock database left two descriptors open."""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path

import pytest

import lockfast


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="counts what is in /proc")
def test_nothing_stays_open(tmp_path: Path) -> None:
    (tmp_path / "other.db").touch(0o600)
    other = sqlite3.connect(tmp_path / "other.db")
    other.execute("CREATE TABLE customers (name)")
    other.close()

    def descriptors_after_a_try() -> int:
        with pytest.raises(lockfast.StoreMisconfiguredError, match="of another program"):
            lockfast.connect(f"sqlite://{tmp_path}/other.db")
        return len(os.listdir("/proc/self/fd"))

    before = descriptors_after_a_try()

    assert [descriptors_after_a_try() for _ in range(3)] == [before] * 3
