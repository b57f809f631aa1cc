"""The programs in `examples/stories/`, on a real Redis, with several processes each."""

from __future__ import annotations

import asyncio
import itertools
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import httpx
import pytest

import lockfast
from tests.cli.processes import ROOT
from tests.servers.ports import free_port
from tests.servers.redis import RedisServer

PATIENCE_S = 90
BUILDS = re.compile(r"monday: process (\d+) builds with token (\d+)")


@pytest.fixture
def url(redis: RedisServer) -> str:
    return redis.url()


@contextmanager
def running(url: str, *arguments: str, warnings: str = "error") -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-u", "-W", warnings, *arguments],
        cwd=ROOT,
        env={**os.environ, "LOCKFAST_URL": url, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def finish(process: subprocess.Popen[str]) -> str:
    output, _ = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0, output
    return output


def line_of(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().rstrip()


def test_two_hundred_requests_under_uvicorn_and_uvloop(url: str) -> None:
    """Each reads a number, lets others run and writes it back: no update is lost."""
    port = free_port()
    app = "examples.stories.fastapi_service:app"
    server = ("-m", "uvicorn", app, "--loop", "uvloop", "--port", str(port))
    with running(url, *server, "--no-access-log") as process:
        for line in iter(lambda: line_of(process), ""):
            if "Uvicorn running" in line:
                break

        async def order() -> list[httpx.Response]:
            limits = httpx.Limits(max_connections=None)
            base = f"http://127.0.0.1:{port}"
            async with httpx.AsyncClient(base_url=base, limits=limits, timeout=PATIENCE_S) as http:
                return await asyncio.gather(*(http.post("/orders/42") for _ in range(200)))

        replies = asyncio.run(order())
    served = [reply.json() for reply in replies if reply.status_code == 200]
    refused = [reply for reply in replies if reply.status_code != 200]
    # A request waits 20 s at most; on a slow machine some may be refused, none may be lost.
    assert {reply.status_code for reply in refused} <= {409}
    assert sorted(reply["left"] for reply in served) == list(range(1000 - len(served), 1000))
    by_token = sorted(served, key=lambda reply: reply["token"])
    assert [reply["left"] for reply in by_token] == list(range(999, 999 - len(served), -1))


def test_a_client_that_hangs_up_leaves_the_queue(url: str) -> None:
    """Over a real connection, which is closed while its request waits for the lock."""
    port = free_port()
    app = "examples.stories.fastapi_service:app"
    with running(url, "-m", "uvicorn", app, "--port", str(port)) as process:
        for line in iter(lambda: line_of(process), ""):
            if "Uvicorn running" in line:
                break
        with lockfast.connect(url) as client, client.lock("order:42"):
            with socket.create_connection(("127.0.0.1", port)) as caller:
                caller.sendall(b"POST /orders/42 HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n")
                wait_for(lambda: client.inspect("order:42").waiting_count == 1)
            wait_for(lambda: client.inspect("order:42").waiting_count == 0)


def wait_for(condition: Callable[[], bool]) -> None:
    until = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.02)


def test_a_report_whose_worker_is_killed_is_built_again() -> None:
    """Two prefork processes; the working one gets kill -9, and the task runs with a new token."""
    with RedisServer(port=free_port()) as server:
        url = f"redis://127.0.0.1:{server.port}/0"
        worker = ("-m", "celery", "-A", "examples.stories.celery_reports", "worker")
        # Celery warns about a worker that runs as root, as it does in some containers.
        with running(url, *worker, "--concurrency=2", warnings="ignore") as process:
            order = [sys.executable, "-m", "examples.stories.celery_reports", "monday"]
            environment = {**os.environ, "LOCKFAST_URL": url}
            with subprocess.Popen(
                order, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True
            ) as ordered:
                assert process.stdout is not None
                begins = filter(None, map(BUILDS.search, process.stdout))
                first = next(begins)
                os.kill(int(first[1]), signal.SIGKILL)
                second = next(begins)
                assert second[1] != first[1]
                assert int(second[2]) > int(first[2])
                output, _ = ordered.communicate(timeout=PATIENCE_S)
            process.terminate()
            process.wait(30)
    assert output == f"token {second[2]}\n"


def test_of_four_pods_one_migrates(url: str, tmp_path: Path) -> None:
    with ExitStack() as pods:
        story = ("examples/stories/migrating_pod.py", str(tmp_path / "shop.db"))
        started = [pods.enter_context(running(url, *story)) for _ in range(4)]
        outputs = sorted(finish(pod) for pod in started)
    assert outputs == ["migrated\nserving 0 orders\n"] + 3 * [
        "nothing to migrate\nserving 0 orders\n"
    ]


def test_a_cron_job_on_three_hosts_runs_on_one(url: str) -> None:
    with running(url, "examples/stories/cron_job.py") as first:
        with running(url, "examples/stories/cron_job.py") as second:
            with running(url, "examples/stories/cron_job.py") as third:
                outputs = [finish(first), finish(second), finish(third)]
    assert sorted(output.startswith("built by") for output in outputs) == [False, False, True]
    assert sum(output == "skipped: another host ran it\n" for output in outputs) == 2


def test_ten_calls_at_a_time_over_three_processes(url: str) -> None:
    with running(url, "examples/stories/rate_limit.py", "30") as first:
        with running(url, "examples/stories/rate_limit.py", "30") as second:
            with running(url, "examples/stories/rate_limit.py", "30") as third:
                outputs = [finish(first), finish(second), finish(third)]
    calls = re.findall(r"^call \d+: ([0-9.]+) to ([0-9.]+)$", "".join(outputs), re.MULTILINE)
    assert len(calls) == 90
    # At the same time, an end sorts before a begin.
    changes = sorted(
        [(float(began), 1) for began, _ in calls] + [(float(ended), -1) for _, ended in calls]
    )
    at_once = list(itertools.accumulate(change for _, change in changes))
    assert max(at_once) <= 10


def test_the_next_candidate_takes_over_from_a_killed_leader(url: str) -> None:
    with running(url, "examples/stories/leader.py", "one") as one:
        assert line_of(one) == "one is a candidate"
        first = line_of(one)
        assert first.startswith("one leads, epoch ")
        with running(url, "examples/stories/leader.py", "two") as two:
            assert line_of(two) == "two is a candidate"
            one.send_signal(signal.SIGKILL)
            second = line_of(two)
    assert second.startswith("two leads, epoch ")
    assert int(second.split()[-1]) > int(first.split()[-1])
