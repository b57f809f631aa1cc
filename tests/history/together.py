"""Concurrent processes whose history is recorded, on any store."""

from __future__ import annotations

from contextlib import contextmanager
from pathlib import Path

import pytest

from lockfast.cli import main
from lockfast.sim.judge import Judgement, judge_file
from tests.history import roles
from tests.processes.crew import Child, Crew, crew_in, until


def work_together(children: list[Child]) -> None:
    _begin(children)
    _end(children)


def _begin(children: list[Child]) -> None:
    for child in children:
        child.hears("ready")
    for child in children:
        child.tell("go")


def _end(children: list[Child]) -> None:
    for child in children:
        child.hears("done", within=100.0)
        assert child.finish() == 0


def contended_at(
    url: str, directory: Path, monkeypatch: pytest.MonkeyPatch, processes: int, times: int
) -> None:
    """Run `contended` on a server."""
    history = directory / "history.jsonl"
    monkeypatch.setenv("LOCKFAST_HISTORY", str(history))
    with contextmanager(crew_in)(directory) as crew:
        crew.url = url
        contended(crew, history, processes, times)


def contended(crew: Crew, history: Path, processes: int, times: int) -> Judgement:
    """Record processes that use every kind of lock, and check that no promise is broken.

    How much of the history can be decided depends on how they were scheduled.
    """
    children = [crew.start(roles.everything, seed, times) for seed in range(processes)]
    client = crew.client()
    with client.lock("a"):
        _begin(children)
        until(lambda: client.inspect("a").waiting_count > 0, "somebody has to wait")
    _end(children)
    judgement = judge_file(history)
    asked = [entry for entry in judgement.entries if entry.get("ask") == "acquire"]
    assert len({entry["by"] for entry in asked}) >= processes
    assert any(entry.get("got") == "queued" for entry in judgement.entries)
    assert list(map(str, judgement.problems)) == []
    assert main(["check", str(history)]) == 0
    return judgement
