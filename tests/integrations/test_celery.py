"""Celery tasks under locks: a real broker, a real prefork worker, a killed child."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import lockfast
from tests.cli.processes import ROOT
from tests.servers.redis import RedisServer, free_port

PATIENCE_S = 90


@pytest.fixture(scope="module")
def tasks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """The application's module, with a worker of two processes at work on it."""
    folder = tmp_path_factory.mktemp("celery")
    with RedisServer(port=free_port()) as server, pytest.MonkeyPatch.context() as patch:
        patch.setenv("TEST_BROKER", f"redis://127.0.0.1:{server.port}/0")
        patch.setenv("TEST_STORE", server.url("celery"))
        patch.setenv("TEST_JOURNAL", str(folder / "journal"))
        worker = subprocess.Popen(
            [
                *(sys.executable, "-m", "celery", "-A", "tests.integrations.celery_app"),
                *("worker", "--concurrency=2", "--without-mingle"),
            ],
            cwd=ROOT,
            env=dict(os.environ),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            from tests.integrations import celery_app

            yield celery_app
        finally:
            worker.terminate()
            worker.wait(30)
            celery_app.app.close()


@pytest.fixture
def journal(tasks: Any) -> Path:
    """Where the tasks of this test write, empty."""
    path: Path = tasks.JOURNAL
    path.unlink(missing_ok=True)
    return path


def test_a_task_never_runs_twice_at_a_time(tasks: Any, journal: Path) -> None:
    """Twelve messages for two processes: refused ones come back until each has run once."""
    sent = [tasks.report.delay("monday", n) for n in range(12)]
    tokens = [result.get(timeout=PATIENCE_S) for result in sent]
    assert len(set(tokens)) == 12
    lines = [line.split() for line in journal.read_text().splitlines()]
    assert sorted(int(line[2]) for line in lines if line[0] == "start") == list(range(12))
    for start, end in zip(lines[::2], lines[1::2], strict=True):
        assert (start[0], end[0]) == ("start", "end")
        assert start[1:] == end[1:]
    assert [int(line[3]) for line in lines[::2]] == sorted(tokens)


def test_different_arguments_do_not_wait_for_each_other(tasks: Any, journal: Path) -> None:
    client = lockfast.connect(os.environ["TEST_STORE"])
    with client, client.lock("report:monday"):
        assert tasks.report.delay("tuesday", 1).get(timeout=PATIENCE_S) > 0


def test_busy_skip_and_busy_fail(tasks: Any, journal: Path) -> None:
    with lockfast.connect(os.environ["TEST_STORE"]) as client, client.lock("import"):
        assert tasks.skipping.delay().get(timeout=PATIENCE_S) is None
        # Celery's JSON results have an exception's name and text, not its type.
        with pytest.raises(Exception, match=r"AcquireTimeoutError.*'import' was not acquired"):
            tasks.failing.delay().get(timeout=PATIENCE_S)
    assert tasks.skipping.delay().get(timeout=PATIENCE_S) == "ran"


def test_a_direct_call_holds_the_lock_and_raises_if_it_is_taken(tasks: Any, journal: Path) -> None:
    with lockfast.connect(os.environ["TEST_STORE"]) as client, client.lock("report:friday"):
        with pytest.raises(lockfast.AcquireTimeoutError):
            tasks.report("friday", 1)
    assert tasks.report("friday", 1) > 0


def test_the_lock_of_a_killed_process_ends_with_its_ttl(tasks: Any, journal: Path) -> None:
    """With acks_late and reject_on_worker_lost the broker delivers the task again."""
    token = tasks.die_once.delay().get(timeout=PATIENCE_S)
    tokens = [int(line.split()[1]) for line in journal.read_text().splitlines()]
    assert len(tokens) == 2
    assert tokens[0] < tokens[1] == token


def test_a_task_without_a_lock_is_refused(tasks: Any) -> None:
    from lockfast.integrations.celery import LockedTask

    @tasks.app.task(base=LockedTask, name="bare")  # type: ignore[untyped-decorator]
    def bare() -> None: ...

    with pytest.raises(TypeError, match="task bare has no lock"):
        bare()
