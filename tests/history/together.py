"""Processes that are recorded while they work at once, whatever the store."""

from __future__ import annotations

from pathlib import Path

from lockfast.cli import main
from lockfast.sim.judge import Judgement, judge_file
from tests.history import roles
from tests.processes.crew import Child, Crew


def work_together(children: list[Child], within: float = 30.0) -> None:
    for child in children:
        child.hears("ready")
    for child in children:
        child.tell("go")
    for child in children:
        child.hears("done", within)
        assert child.finish() == 0


def contended(crew: Crew, history: Path, processes: int, times: int) -> Judgement:
    """What is to be said of processes that use every kind of lock at once; it is all well.

    How much of it can be decided is a matter of how they were scheduled.
    """
    work_together(
        [crew.start(roles.everything, seed, times) for seed in range(processes)], within=100.0
    )
    judgement = judge_file(history)
    asked = [entry for entry in judgement.entries if entry.get("ask") == "acquire"]
    assert len({entry["by"] for entry in asked}) >= processes
    assert any(entry.get("got") == "queued" for entry in judgement.entries), "nobody had to wait"
    assert list(map(str, judgement.problems)) == []
    assert main(["check", str(history)]) == 0
    return judgement
