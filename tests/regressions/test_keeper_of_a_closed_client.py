"""The keeper of a closed client stops, even if the store never answers.

The release of a claim that was abandoned before its session was known to be open was retried until
it was answered; without a session there was no deadline. The thread ran for ever, and logged a
warning every second.
"""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

import lockfast
from tests.processes.crew import until


def test_it_stops(tmp_path: Path) -> None:
    before = threading.active_count()
    client = lockfast.connect(f"sqlite://{tmp_path}/locks.db", connect_timeout=0.1)
    (tmp_path / "locks.db").unlink()
    with pytest.raises(lockfast.StoreError):
        client.lock("a").acquire()
    client.close()
    until(lambda: threading.active_count() == before, "the keeper has stopped")
