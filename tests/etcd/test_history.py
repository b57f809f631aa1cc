"""LOCKFAST_HISTORY on etcd: several processes at once, judged by `lockfast check`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.history.together import contended
from tests.processes.crew import Crew, crew_in
from tests.servers.etcd import EtcdCluster


@pytest.fixture
def crew(tmp_path: Path, node: EtcdCluster) -> Iterator[Crew]:
    for crew in crew_in(tmp_path):
        crew.url = node.url("history")
        yield crew


def test_what_processes_recorded_is_judged_clean(
    crew: Crew, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    history = tmp_path / "history.jsonl"
    monkeypatch.setenv("LOCKFAST_HISTORY", str(history))
    contended(crew, history, processes=5, times=20)
