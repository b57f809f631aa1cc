"""once: at most one run per window over the whole fleet; and lock_delay."""

from __future__ import annotations

from typing import Any

import pytest

import lockfast
from tests.primitives.world import World


def counted(client: Any, runs: list[str], **settings: Any) -> Any:
    options = {"at_least": 60, "at_most": 120, **settings}

    return client.once("nightly", **options)(writing_down(runs))


def writing_down(runs: list[str]) -> Any:
    async def job(what: str) -> str:
        runs.append(what)
        if what == "fail":
            raise ZeroDivisionError
        return f"ran {what}"

    return job


async def test_one_run_per_window(world: World) -> None:
    one, two = world.clients(2)
    runs: list[str] = []
    mine, theirs = counted(one, runs), counted(two, runs)
    assert await mine("a") == "ran a"
    assert await theirs("b") is None
    assert await mine("c") is None
    assert runs == ["a"]
    closed = (await one.inspect("nightly", kind="once")).closed_for
    assert 50 < closed < 61


async def test_the_next_window_runs_again(world: World) -> None:
    client = world.client()
    runs: list[str] = []
    job = counted(client, runs, at_least=0.1, at_most=10)
    assert await job("a") == "ran a"
    assert await job("b") is None
    await world.until_seen(client, "nightly", lambda info: info.closed_for == 0, "once")

    async def again() -> bool:
        return bool(await job("c") == "ran c")

    await world.until(again)
    assert runs == ["a", "c"]


async def test_not_while_another_runs(world: World) -> None:
    one, two = world.clients(2)
    go_on = world.flag()
    running = world.flag()

    async def long() -> str:
        running.set()
        await go_on.wait()
        return "done"

    started = world.start(one.once("nightly", at_least=0, at_most=60)(long)())
    await running.wait()
    runs: list[str] = []
    assert await counted(two, runs, at_least=0)("b") is None
    go_on.set()
    assert await started.result() == "done"
    assert await counted(two, runs, at_least=0)("b") == "ran b"


async def test_a_failed_run_is_a_run_unless_it_is_to_be_retried(world: World) -> None:
    client = world.client()
    runs: list[str] = []
    with pytest.raises(ZeroDivisionError):
        await counted(client, runs)("fail")
    assert await counted(client, runs)("again") is None
    other = world.client()
    retried = counted_as(other, "weekly", runs, retry_crashed=True)
    with pytest.raises(ZeroDivisionError):
        await retried("fail")
    assert await retried("again") == "ran again"
    assert await retried("more") is None, "it went well, so the window is closed"


def counted_as(client: Any, name: str, runs: list[str], **settings: Any) -> Any:
    return client.once(name, at_least=60, at_most=120, **settings)(writing_down(runs))


async def test_a_crashed_run_is_not_repeated_in_its_window(world: World) -> None:
    """The session of the runner ends in the middle of the run, as if its process had died."""
    one, two, admin = world.clients(3)
    for retry, expected in ((False, None), (True, "ran b")):
        name = f"job-{retry}"
        inside, go_on = world.flag(), world.flag()

        async def crash(inside: Any = inside, go_on: Any = go_on) -> None:
            inside.set()
            await go_on.wait()

        once = one.once(name, at_least=60, at_most=120, retry_crashed=retry)
        running = world.start(once(crash)())
        await inside.wait()
        runs: list[str] = []
        assert await counted_as(two, name, runs, retry_crashed=retry)("a") is None
        (holder,) = (await admin.inspect(name, kind="once")).holders
        await admin.revoke(session=holder.session, reason="as if it had crashed")
        assert await counted_as(two, name, runs, retry_crashed=retry)("b") == expected
        go_on.set()
        await running.result()


async def test_a_run_that_takes_too_long_loses_its_claim(world: World) -> None:
    one, two = world.clients(2)
    inside, go_on = world.flag(), world.flag()

    async def stuck() -> str:
        inside.set()
        await go_on.wait()
        return "late"

    started = world.start(one.once("nightly", at_least=0.05, at_most=0.1)(stuck)())
    await inside.wait()
    runs: list[str] = []

    async def taken_over() -> bool:
        return bool(await counted(two, runs, at_least=0.05, at_most=10)("b") == "ran b")

    await world.until(taken_over)
    go_on.set()
    assert await started.result() == "late", "it has run; that it was late is logged"


async def test_windows_that_make_no_sense(world: World) -> None:
    client = world.client()
    with pytest.raises(ValueError, match="at_most"):
        client.once("nightly", at_least=60, at_most=30)


# ── lock_delay ───────────────────────────────────────────────────────────────────────


async def test_lock_delay_after_a_loss_and_not_after_a_release(world: World) -> None:
    one, two = world.clients(2)
    async with one.lock("a", lock_delay=60):
        pass
    await (await two.lock("a").acquire(timeout=0)).release()
    lease = await one.lock("a", lock_delay=0.2).acquire()
    waiting = world.start(two.lock("a").acquire())
    await world.until_queued(two, "a", 1)
    await two.revoke("a", reason="enough")
    info = await two.inspect("a")
    if info.closed_for:
        assert info.holder_count == 0, "closed: nobody is let in yet"
    assert await two.lock("a").try_acquire() is None
    theirs = await waiting.result()
    assert theirs.token > lease.token
    await theirs.release()
    with pytest.raises(lockfast.LeaseLostError):
        await lease.release()


async def test_lock_delay_after_an_ended_session(world: World) -> None:
    one, two = world.clients(2)
    lease = await one.rwlock("a", lock_delay=60).write().acquire()
    await two.revoke(session=lease.session, reason="as if it had crashed")
    assert (await two.inspect("a")).closed_for > 30
    with pytest.raises(lockfast.AcquireTimeoutError):
        await two.lock("a").acquire(timeout=0.02)
    with pytest.raises(lockfast.LeaseLostError):
        await lease.release()
