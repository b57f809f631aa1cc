"""Celery tasks under locks: a real broker, a real prefork worker, a killed child."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import lockfast
from tests.cli.processes import ROOT
from tests.servers.ports import free_port
from tests.servers.redis import RedisServer

PATIENCE_S = 90


@pytest.fixture(scope="module")
def tasks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Return the application's module, with a worker of two processes running it."""
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
    """Return the empty file that the tasks of this test write to."""
    path: Path = tasks.JOURNAL
    path.unlink(missing_ok=True)
    return path


def test_a_task_never_runs_twice_at_a_time(tasks: Any, journal: Path) -> None:
    """Twelve messages for two processes: refused ones are redelivered until each has run once."""
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


def test_a_task_that_retries_itself_releases_in_between(tasks: Any, journal: Path) -> None:
    """Its second run is a second grant, and is not counted as refused."""
    token = tasks.retry_once.delay().get(timeout=PATIENCE_S)
    tokens = [int(line.split()[1]) for line in journal.read_text().splitlines()]
    assert len(tokens) == 2
    assert tokens[0] < tokens[1] == token


@pytest.mark.parametrize(("how", "ends"), [("SIGTERM", ["interrupted"]), ("SIGKILL", [])])
def test_a_revoked_task_is_killed_and_its_lock_comes_free(
    tasks: Any, journal: Path, how: str, ends: list[str]
) -> None:
    """SIGTERM lets it release. The broker does not redeliver it, unlike a lost one."""
    killed = tasks.report.delay(how, 1, seconds=600)
    wait_for(lambda: "start" in read(journal))
    killed.revoke(terminate=True, signal=how)
    with lockfast.connect(os.environ["TEST_STORE"]) as client:
        client.lock(f"report:{how}").acquire(timeout=PATIENCE_S).release()
    assert tasks.report.delay(how, 2).get(timeout=PATIENCE_S) > 0
    lines = [line.split() for line in read(journal).splitlines()]
    assert [line[0] for line in lines] == ["start", *ends, "start", "end"]
    assert [line[2] for line in lines] == ["1"] * (1 + len(ends)) + ["2", "2"]


def test_a_message_that_the_broker_delivers_twice_runs_once_at_a_time(
    tasks: Any, journal: Path
) -> None:
    """As after a visibility timeout: the same task, with the same id, again."""
    for _ in range(2):
        tasks.report.apply_async(("twice", 1, 0.3), task_id="the-same")
    wait_for(lambda: read(journal).count("end") == 2)
    lines = [line.split() for line in read(journal).splitlines()]
    assert [line[0] for line in lines] == ["start", "end"] * 2
    assert lines[0][3] == lines[1][3] < lines[2][3] == lines[3][3]


def test_a_task_whose_lease_is_lost_fails_at_its_end(tasks: Any, journal: Path) -> None:
    result = tasks.outlive_its_lease.delay()
    wait_for(lambda: "run" in read(journal))
    with lockfast.connect(os.environ["TEST_STORE"]) as client:
        client.revoke("lost", reason="test")
    with pytest.raises(Exception, match=r"LeaseLostError.*revoked: test"):
        result.get(timeout=PATIENCE_S)
    assert "went on" in read(journal)


def read(path: Path) -> str:
    return path.read_text() if path.exists() else ""


def wait_for(condition: Callable[[], bool]) -> None:
    until = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.02)


def test_one_of_two_beats_sends_and_the_other_takes_over(tasks: Any, tmp_path: Path) -> None:
    """As on the page: `lockfast run celery-beat -- celery -A … beat`."""

    def start(name: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [
                *(sys.executable, "-m", "lockfast", "run", "--ttl", "2", "celery-beat", "--"),
                *(sys.executable, "-m", "celery", "-A", "tests.integrations.celery_beat"),
                *("beat", "--schedule", str(tmp_path / name), "--pidfile", ""),
            ],
            cwd=ROOT,
            env={
                **os.environ,
                "LOCKFAST_URL": os.environ["TEST_STORE"],
                "TEST_JOURNAL": str(tmp_path / "sent"),
                "TEST_BEAT": name,
            },
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    def senders() -> list[str]:
        return read(tmp_path / "sent").split()

    with start("one") as one:
        try:
            wait_for(lambda: len(senders()) >= 3)
            with start("two") as two:
                try:
                    with lockfast.connect(os.environ["TEST_STORE"]) as client:
                        wait_for(lambda: client.inspect("celery-beat").waiting_count == 1)
                    sent = len(senders())
                    wait_for(lambda: len(senders()) >= sent + 3)
                    assert set(senders()) == {"one"}
                    one.kill()
                    wait_for(lambda: senders().count("two") >= 2)
                    last = senders()
                    assert last == sorted(last)  # "one" … "one", "two" … "two"
                finally:
                    two.terminate()
                    two.wait(30)
        finally:
            one.kill()
            one.wait(30)


def test_a_task_without_a_lock_is_refused(tasks: Any) -> None:
    from lockfast.integrations.celery import LockedTask

    @tasks.app.task(base=LockedTask, name="bare")  # type: ignore[untyped-decorator]
    def bare() -> None: ...

    with pytest.raises(TypeError, match="task bare has no lock"):
        bare()
