"""once(wait=True): one client runs the job; the others wait for it and get its outcome."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import lockfast
from lockfast import Outcome, RunFailedError
from lockfast.testing import ControlledStore

WINDOW: dict[str, Any] = {"at_least": 300, "at_most": 3600}
PATIENCE_S = 60.0


class Pod:
    """A client on its own thread that calls the job and waits for it."""

    def __init__(self, face: str, store: ControlledStore, threads: ThreadPoolExecutor) -> None:
        self._face = face
        self._store = store
        self._threads = threads
        self.client: Any = store.connect() if face == "blocking" else store.connect_aio()

    def call(self, job: Callable[[], Any], **options: Any) -> Future[tuple[Outcome, Any]]:
        once = self.client.once("migrate", **{**WINDOW, "wait": True, **options})
        if self._face == "blocking":
            return self._threads.submit(once.run, job)

        async def job_async() -> Any:
            return await asyncio.to_thread(job)

        return self._threads.submit(lambda: asyncio.run(once.run(job_async)))


@pytest.fixture(params=["blocking", "aio"])
def pods(request: pytest.FixtureRequest, lockfast_store: ControlledStore) -> Iterator[list[Pod]]:
    with ThreadPoolExecutor(8) as threads:
        yield [Pod(request.param, lockfast_store, threads) for _ in range(3)]


def waits(store: ControlledStore) -> None:
    """Return when two others wait for the end of the run."""
    pause = threading.Event()
    for _ in range(int(PATIENCE_S * 100)):
        if sum(bool(session.events_changed) for session in store._sessions()) >= 2:
            return
        pause.wait(0.01)
    raise AssertionError("nobody waits")


def test_one_runs_and_the_others_wait_and_go_on(
    pods: list[Pod], lockfast_store: ControlledStore
) -> None:
    go, runs = threading.Event(), []

    def migrate() -> str:
        runs.append(1)
        assert go.wait(PATIENCE_S)
        return "migrated"

    calls = [pod.call(migrate) for pod in pods]
    waits(lockfast_store)
    assert not any(call.done() for call in calls)
    go.set()
    outcomes = sorted(call.result(PATIENCE_S) for call in calls)
    assert outcomes == [("done", None), ("done", None), ("ran", "migrated")]
    assert len(runs) == 1
    # A later caller finds it done.
    assert pods[0].call(migrate).result(PATIENCE_S) == (Outcome.DONE, None)


def test_those_who_waited_for_a_failure_are_told(
    pods: list[Pod], lockfast_store: ControlledStore
) -> None:
    go = threading.Event()

    def migrate() -> None:
        assert go.wait(PATIENCE_S)
        raise ZeroDivisionError

    calls = [pod.call(migrate) for pod in pods]
    waits(lockfast_store)
    go.set()
    ended = [call.exception(PATIENCE_S) or call.result() for call in calls]
    assert sorted(map(str, ended)) == sorted(["", *[str((Outcome.FAILED, None))] * 2])
    assert pods[0].call(lambda: None).result(PATIENCE_S) == (Outcome.FAILED, None)


def test_a_crashed_run_failed(pods: list[Pod], lockfast_store: ControlledStore) -> None:
    first = pods[0].client
    lease = first.once("migrate", **WINDOW, wait=True)._take()
    if asyncio.iscoroutine(lease):
        lease = asyncio.run(lease)
    waiting = [pod.call(lambda: None) for pod in pods[1:]]
    waits(lockfast_store)
    lockfast_store.lose("migrate", "the pod was killed")
    assert [each.result(PATIENCE_S) for each in waiting] == [(Outcome.FAILED, None)] * 2
    del lease


def test_with_retry_crashed_one_of_the_waiting_takes_over(
    pods: list[Pod], lockfast_store: ControlledStore
) -> None:
    go, tried = threading.Event(), []

    def migrate() -> str:
        tried.append(1)
        if len(tried) == 1:
            assert go.wait(PATIENCE_S)
            raise ZeroDivisionError
        return "migrated"

    calls = [pod.call(migrate, retry_crashed=True) for pod in pods]
    waits(lockfast_store)
    go.set()
    ended = [call.exception(PATIENCE_S) or call.result() for call in calls]
    assert sorted(map(str, ended)) == sorted(
        ["", str((Outcome.RAN, "migrated")), str((Outcome.DONE, None))]
    )
    assert len(tried) == 2


def test_a_run_longer_than_its_window_is_not_repeated_by_those_who_waited(
    pods: list[Pod], lockfast_store: ControlledStore
) -> None:
    go, runs = threading.Event(), []

    def migrate() -> None:
        runs.append(1)
        assert go.wait(PATIENCE_S)

    calls = [pod.call(migrate, at_least=1, ttl=3600) for pod in pods]
    waits(lockfast_store)
    lockfast_store.clock.advance(60)
    go.set()
    assert sorted(call.result(PATIENCE_S)[0] for call in calls) == ["done", "done", "ran"]
    assert len(runs) == 1


def test_the_decorator_returns_none_or_raises(lockfast_store: ControlledStore) -> None:
    one, other = lockfast_store.connect(), lockfast_store.connect()

    def job() -> str:
        return "ran"

    def fails() -> str:
        raise ZeroDivisionError

    assert one.once("a", **WINDOW, wait=True)(job)() == "ran"
    assert other.once("a", **WINDOW, wait=True)(job)() is None
    with pytest.raises(ZeroDivisionError):
        one.once("b", **WINDOW, wait=True)(fails)()
    with pytest.raises(RunFailedError, match="'b'"):
        other.once("b", **WINDOW, wait=True)(job)()
    lockfast_store.clock.advance(300)
    assert other.once("b", **WINDOW, wait=True)(job)() == "ran"


def test_without_wait_a_skip_is_a_skip(lockfast_client: lockfast.Client) -> None:
    once = lockfast_client.once("a", **WINDOW)
    assert once.run(str) == (Outcome.RAN, "")
    assert once.run(str) == (Outcome.SKIPPED, None)


def test_processes_wait_on_the_embedded_store(tmp_path: Path) -> None:
    with (
        lockfast.connect(f"sqlite://{tmp_path}/locks.db") as one,
        lockfast.connect(f"sqlite://{tmp_path}/locks.db") as other,
        ThreadPoolExecutor(1) as threads,
    ):
        began, go = threading.Event(), threading.Event()

        def migrate() -> None:
            began.set()
            assert go.wait(PATIENCE_S)

        running = threads.submit(one.once("a", **WINDOW, wait=True).run, migrate)
        assert began.wait(PATIENCE_S)
        threading.Timer(0.05, go.set).start()
        assert other.once("a", **WINDOW, wait=True).run(migrate) == (Outcome.DONE, None)
        assert running.result(PATIENCE_S) == (Outcome.RAN, None)
