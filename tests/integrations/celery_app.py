"""A Celery application for the tests; broker, results and store come from the environment."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from celery import Celery  # type: ignore[import-untyped]

from lockfast.integrations.celery import LockedTask

app = Celery("lockfast_test", broker=os.environ["TEST_BROKER"], backend=os.environ["TEST_BROKER"])
app.conf.update(
    lockfast_url=os.environ["TEST_STORE"],
    lockfast_ttl=2,
    broker_connection_retry_on_startup=True,
    broker_transport_options={"visibility_timeout": 3},
    result_backend_transport_options={"visibility_timeout": 3},
    task_acks_late=True,
    task_reject_on_worker_lost=True,
    worker_prefetch_multiplier=1,
)
JOURNAL = Path(os.environ["TEST_JOURNAL"])


def note(*words: object) -> None:
    with JOURNAL.open("a") as journal:
        journal.write(" ".join(map(str, words)) + "\n")


@app.task(bind=True, base=LockedTask, lock="report:{day}", busy="retry", busy_countdown=0.2)  # type: ignore[untyped-decorator]
def report(self: Any, day: str, n: int, seconds: float = 0.05) -> int:
    token: int = self.request.lease.token
    note("start", day, n, token, os.getpid())
    try:
        time.sleep(seconds)  # the work
    except BaseException:
        note("interrupted", day, n)
        raise
    note("end", day, n, token, os.getpid())
    return token


@app.task(base=LockedTask, lock="import", busy="skip")  # type: ignore[untyped-decorator]
def skipping() -> str:
    return "ran"


@app.task(base=LockedTask, lock="import", busy="fail")  # type: ignore[untyped-decorator]
def failing() -> str:
    return "ran"


@app.task(bind=True, base=LockedTask, lock="hold", lock_timeout=30)  # type: ignore[untyped-decorator]
def die_once(self: Any) -> int:
    """Kill the worker's process in the middle of the first run."""
    token: int = self.request.lease.token
    first = not JOURNAL.exists()
    note("run", token)
    if first:
        os.kill(os.getpid(), 9)
    return token


@app.task(bind=True, base=LockedTask, lock="again", max_retries=1)  # type: ignore[untyped-decorator]
def retry_once(self: Any) -> int:
    token: int = self.request.lease.token
    note("run", token)
    if not self.request.retries:
        raise self.retry(countdown=0.1)
    return token


@app.task(bind=True, base=LockedTask, lock="lost")  # type: ignore[untyped-decorator]
def outlive_its_lease(self: Any) -> str:
    """Continue until the lease is lost, and one step further."""
    note("run", self.request.lease.token)
    assert self.request.lease.lost.wait(60)
    note("went on")
    return "done"
