"""The log of the embedded store grew without bound when steps wrote two entries each.

It was trimmed when its position was a multiple of 256. Taking two locks at once advances it by two:
from an odd position it never was.
"""

from __future__ import annotations

from pathlib import Path

import pytest

import lockfast
from lockfast.stores.sqlite import log, rows


def test_the_log_is_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log, "LOG_KEPT", 50)
    with lockfast.connect(f"sqlite://{tmp_path}/locks.db") as client:
        odd = client.lock("odd").acquire()
        with pytest.raises(lockfast.WatchGapError):
            next(client.watch(after=0))  # the log begins with the first read
        both = client.all("a", "b")

        for _ in range(200):
            both.acquire().release()

        with pytest.raises(lockfast.WatchGapError) as caught:
            next(client.watch(after=0))
        kept = caught.value.resume_at - caught.value.oldest + 1
        in_the_hot_row = rows.HOT_MAX // 60  # no entry is shorter
        assert 50 <= kept <= 50 + in_the_hot_row
        odd.release()
