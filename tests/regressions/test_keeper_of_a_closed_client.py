"""The keeper of a closed client stops, though the store never answers.

A claim that was abandoned before its session was known to be open was to be given back
until that is answered; without a session there was no deadline to end it. The thread
went on for ever, and warned once a second.
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
