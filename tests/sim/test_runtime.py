"""The simulator's runtime: time, waiting, cancelling, pausing and crashing."""

from __future__ import annotations

import pytest

from lockfast.sim.runtime import (
    EMPTY_WAITS_MAX,
    MS,
    Cancelled,
    Crashed,
    Host,
    Kernel,
    LivelockError,
    SimSignal,
)


def test_a_callback_sees_the_clock_of_its_own_instant() -> None:
    kernel = Kernel()
    seen: list[tuple[str, int]] = []
    kernel.at(5, lambda: seen.append(("later", kernel.now)))
    kernel.at(5, lambda: seen.append(("in order", kernel.now)))
    kernel.at(3, lambda: seen.append(("first", kernel.now)))
    kernel.run()
    assert seen == [("first", 3), ("later", 5), ("in order", 5)]


def test_run_leaves_the_clock_where_it_was_told() -> None:
    kernel = Kernel()
    kernel.at(3, lambda: None)
    kernel.at(90, lambda: None)
    kernel.run(until=50)
    assert kernel.now == 50
    kernel.run()
    assert kernel.now == 90


def test_a_task_that_ends_early_leaves_nothing_that_ends_a_later_run() -> None:
    kernel = Kernel()
    host = Host(kernel, "h")
    kernel.run_until_done(host.start(host.sleep(1), "short"), limit=5 * MS)
    kernel.run_until_done(host.start(host.sleep(20), "long"))
    assert kernel.now == 21 * MS


def test_a_task_that_does_not_end_in_time_is_told_so() -> None:
    kernel = Kernel()
    host = Host(kernel, "h")
    with pytest.raises(TimeoutError, match="has not ended"):
        kernel.run_until_done(host.start(host.signal().wait(None), "never"), limit=MS)


def test_a_signal_ends_a_wait_and_a_timeout_does_too() -> None:
    kernel = Kernel()
    host = Host(kernel, "h")
    signal = host.signal()
    seen: list[tuple[bool, int]] = []

    async def waiter() -> None:
        seen.append((await signal.wait(3), kernel.now))
        seen.append((await signal.wait(None), kernel.now))
        seen.append((await signal.wait(None), kernel.now))

    task = host.start(waiter(), "waiter")
    kernel.at(7 * MS, signal.set)
    kernel.run_until_done(task)
    assert seen == [(False, 3 * MS), (True, 7 * MS), (True, 7 * MS)]


def test_a_timer_that_lost_the_race_wakes_nobody_later() -> None:
    kernel = Kernel()
    host = Host(kernel, "h")
    signal = host.signal()
    seen: list[int] = []

    async def waiter() -> None:
        await signal.wait(5)
        await host.sleep(100)
        seen.append(kernel.now)

    task = host.start(waiter(), "waiter")
    kernel.at(1 * MS, signal.set)
    kernel.run_until_done(task)
    assert seen == [101 * MS]


def test_cancelling_passes_a_retry_loop_that_swallows_exceptions() -> None:
    kernel = Kernel()
    host = Host(kernel, "h")
    left: list[str] = []

    async def stubborn() -> None:
        while True:
            try:
                await host.sleep(1)
            except Exception:
                continue
            finally:
                left.append("finally")

    task = host.start(stubborn(), "stubborn")
    kernel.at(2500, task.cancel)
    with pytest.raises(Cancelled):
        kernel.run_until_done(task)
    assert left == ["finally"] * 3
    assert kernel.now == 2500


def test_a_cancelled_waiter_leaves_the_signal_to_others() -> None:
    kernel = Kernel()
    host = Host(kernel, "h")
    signals: list[SimSignal] = [host.signal(), host.signal()]
    tasks = [host.start(signal.wait(None), f"t{i}") for i, signal in enumerate(signals)]
    kernel.at(1, tasks[0].cancel)
    kernel.at(2, signals[0].set)
    kernel.at(2, signals[1].set)
    assert kernel.run_until_done(tasks[1])
    with pytest.raises(Cancelled):
        tasks[0].result()


def test_a_paused_host_stands_still_and_its_clock_goes_on() -> None:
    kernel = Kernel()
    host = Host(kernel, "h")
    seen: list[int] = []

    async def worker() -> None:
        for _ in range(3):
            await host.sleep(10)
            seen.append(host.now_ms())

    task = host.start(worker(), "worker")
    kernel.at(15 * MS, host.pause)
    kernel.at(95 * MS, host.resume)
    kernel.run_until_done(task)
    assert seen == [10, 95, 105]


def test_a_crashed_host_runs_nothing_and_lets_nothing_out() -> None:
    kernel = Kernel()
    host = Host(kernel, "h")
    sent: list[str] = []

    async def worker() -> None:
        try:
            await host.sleep(10)
            sent.append("went on")
        finally:
            await host.signal().wait(0)
            sent.append("got out")

    task = host.start(worker(), "worker")
    kernel.at(5 * MS, host.crash)
    kernel.run(until=50 * MS)
    with pytest.raises(Crashed):
        task.result()
    assert sent == []
    lives = host.process()
    host.restart()
    assert host.process() != lives
    kernel.run_until_done(host.start(host.sleep(1), "anew"))


def test_what_arrives_at_a_paused_host_waits_and_at_a_dead_one_is_lost() -> None:
    kernel = Kernel()
    host = Host(kernel, "h")
    seen: list[str] = []
    host.pause()
    kernel.arrive(5, host, lambda: seen.append("kept"))
    kernel.run()
    assert seen == []
    host.resume()
    kernel.run()
    host.crash()
    kernel.arrive(5, host, lambda: seen.append("lost"))
    kernel.run()
    assert seen == ["kept"]


@pytest.mark.parametrize("rate_ppm", [-300_000, -500, 0, 500, 300_000])
def test_waiting_by_a_clock_that_runs_wrong_ends_when_that_clock_says_so(rate_ppm: int) -> None:
    kernel = Kernel()
    host = Host(kernel, "h", started_us=123_456)
    host.clock.drift(rate_ppm)

    async def measure() -> tuple[int, int]:
        before = host.clock.local_us()
        await host.sleep(1000)
        return before, host.clock.local_us()

    before, after = kernel.run_until_done(host.start(measure(), "measure"))
    assert 1000 * MS <= after - before <= 1000 * MS + 1
    assert abs(host.clock.tick_when(after) - kernel.now) <= 1


def test_the_wall_clock_jumps_and_the_other_does_not() -> None:
    kernel = Kernel()
    host = Host(kernel, "h")
    wall, local = host.clock.wall_us(), host.clock.local_us()
    host.clock.jump(-5_000_000)
    assert host.clock.wall_us() == wall - 5_000_000
    assert host.clock.local_us() == local


def test_failed_background_work_ends_the_run() -> None:
    kernel = Kernel()
    host = Host(kernel, "h")

    async def broken() -> None:
        raise ValueError("in the background")

    host.spawn(broken, "broken")
    with pytest.raises(ValueError, match="in the background"):
        kernel.run()


def test_time_that_stands_still_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lockfast.sim.runtime.STEPS_PER_INSTANT_MAX", 50)
    kernel = Kernel()
    host = Host(kernel, "h")

    async def ping(mine: list[SimSignal], other: list[SimSignal]) -> None:
        while True:
            signal = mine[0]
            await signal.wait(None)
            mine[0] = host.signal()
            other[0].set()

    one, two = [host.signal()], [host.signal()]
    host.start(ping(one, two), "one")
    host.start(ping(two, one), "two")
    kernel.soon(one[0].set)
    with pytest.raises(LivelockError):
        kernel.run()


def test_a_simulation_that_does_not_end_is_stopped() -> None:
    """Virtual time advances while a task retries, so only the number of steps shows it."""
    kernel = Kernel()
    host = Host(kernel, "h")

    async def retry() -> None:
        while True:
            await host.sleep(1)

    host.start(retry(), "retry")
    kernel.steps_max = 1000
    kernel.run(until=500 * MS)
    with pytest.raises(LivelockError, match="within 1,000 steps"):
        kernel.run(until=5000 * MS)
    assert kernel.steps == 1001


def test_a_task_that_waits_for_no_time_over_and_over_is_busy() -> None:
    kernel = Kernel()
    host = Host(kernel, "h")

    async def worker(waits: int) -> None:
        for _ in range(waits):
            await host.signal().wait(0)
        await host.signal().wait(1)
        for _ in range(waits):
            await host.signal().wait(0)

    host.start(worker(EMPTY_WAITS_MAX - 1), "in time")
    host.start(worker(EMPTY_WAITS_MAX), "too often")
    kernel.run()
    assert list(kernel.busy) == ["too often on h"]


def test_the_same_seed_gives_the_same_randomness_and_another_does_not() -> None:
    draws = [
        (host.random(), host.unique()) for seed in (1, 1, 2) for host in [Host(Kernel(seed), "h")]
    ]
    assert draws[0] == draws[1] != draws[2]
