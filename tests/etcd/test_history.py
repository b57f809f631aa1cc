"""LOCKFAST_HISTORY on etcd: several processes at once, judged by `lockfast check`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.history.together import contended_at
from tests.servers.etcd import EtcdCluster


def test_what_processes_recorded_is_judged_clean(
    node: EtcdCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    contended_at(node.url("history"), tmp_path, monkeypatch, processes=5, times=20)
