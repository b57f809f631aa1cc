"""LOCKFAST_HISTORY on Redis: several processes at once, judged by `lockfast check`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.history.together import contended_at
from tests.servers.redis import RedisServer


def test_what_processes_recorded_is_judged_clean(
    server: RedisServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    contended_at(server.url("history"), tmp_path, monkeypatch, processes=6, times=40)
