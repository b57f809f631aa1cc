"""Retained locks: the cost of a local use against asyncio.Lock, and the hand-over to others."""

from __future__ import annotations

import asyncio
import itertools
import multiprocessing
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import lockfast
import lockfast.aio
from bench.crew import CrewError
from bench.figures import Summary, summary
from bench.report import Target

__all__ = ["Retained", "RetainedPlan", "report_retained", "run_retained", "targets_retained"]

TASKS = 64
NAME = "bench"
WANTED_EVERY_MS = (None, 50, 0)
"""How often the second process wants the lock: never, every 50 ms, all the time."""
ANSWER_TIMEOUT_S = 120.0

PAIR_US_MAX = 8.0
SHARE_MIN = 0.4
HANDOVER_MS_MAX = 5.0


@dataclass(frozen=True)
class RetainedPlan:
    rounds: int = 10
    pairs_per_round: int = 2000
    grants_per_task: int = 100
    handovers_per_round: int = 5


@dataclass(frozen=True)
class Busy:
    """Grants per second of 64 tasks, and the grants of the second process at the same time."""

    asyncio_lock: float
    retained: float
    others: int
    in_order: bool

    @property
    def share(self) -> float:
        return self.retained / self.asyncio_lock


@dataclass(frozen=True)
class Retained:
    pair_us: Summary
    store_operations: int
    rising: bool
    """Each token was higher than the one before."""
    busy: dict[str, Busy]
    """By how often the second process wants the lock."""
    handover_ms: Summary


def run_retained(plan: RetainedPlan, directory: Path, progress: Callable[[str], None]) -> Retained:
    progress("retained acquire + release")
    pair_us, operations, rising = _measure_pairs(f"sqlite://{directory / 'alone.db'}", plan)
    url = f"sqlite://{directory / 'shared.db'}"
    with _second_process(url) as second:
        busy = {}
        for every_ms in WANTED_EVERY_MS:
            label = _label(every_ms)
            progress(f"{TASKS} tasks of one client; the second process wants it {label}")
            busy[label] = _measure_busy(url, plan, second, every_ms)
        progress("from the local release until the second process has it")
        handover_ms = _measure_handover(url, plan, second)
    return Retained(pair_us, operations, rising, busy, handover_ms)


def _label(every_ms: int | None) -> str:
    if every_ms is None:
        return "never"
    return f"every {every_ms} ms" if every_ms else "all the time"


# ── alone ────────────────────────────────────────────────────────────────────────────


def _measure_pairs(url: str, plan: RetainedPlan) -> tuple[Summary, int, bool]:
    took_us = []
    tokens = []
    sent = 0
    with lockfast.connect(url) as client:
        lock = client.lock(NAME, retain=True)
        lock.acquire().release()
        send = client._core.wire.send

        async def counted(command: Any, timeout_ms: int) -> Any:
            nonlocal sent
            sent += 1
            return await send(command, timeout_ms)

        client._core.wire.send = counted  # type: ignore[method-assign]
        for _ in range(plan.rounds):
            for _ in range(plan.pairs_per_round):
                began_ns = time.perf_counter_ns()
                lease = lock.acquire()
                lease.release()
                took_us.append((time.perf_counter_ns() - began_ns) / 1000)
                tokens.append(lease.token)
    # A block has 4096 tokens; after that many uses the lock is acquired again once.
    rising = all(one < other for one, other in itertools.pairwise(tokens))
    return summary(took_us), sent, rising


# ── 64 tasks and a second process ────────────────────────────────────────────────────


def _measure_busy(url: str, plan: RetainedPlan, second: Connection, every_ms: int | None) -> Busy:
    async def measure() -> Busy:
        plain, kept = [], []
        in_order = True
        others = 0
        async with lockfast.aio.connect(url) as client:
            retained = client.lock(NAME, retain=True)
            for _ in range(plan.rounds):
                plain.append((await _race(asyncio.Lock(), plan.grants_per_task))[0])
                if every_ms is not None:
                    _order(second, ("contend", every_ms))
                rate, fair = await _race(retained, plan.grants_per_task)
                kept.append(rate)
                in_order &= fair
                if every_ms is not None:
                    second.send(("stop",))
                    others += _answer(second)
        return Busy(summary(plain).median, summary(kept).median, others, in_order)

    return asyncio.run(measure())


async def _race(lock: Any, grants: int) -> tuple[float, bool]:
    """Return grants per second, and whether all tasks were served in turn."""
    order: list[int] = []

    async def use(at: int) -> None:
        for _ in range(grants):
            async with lock:
                order.append(at)
                await asyncio.sleep(0)  # let the others ask for it

    began = time.perf_counter()
    await asyncio.gather(*(use(at) for at in range(TASKS)))
    took = time.perf_counter() - began
    turns = [order[at : at + TASKS] for at in range(0, len(order), TASKS)]
    return len(order) / took, all(len(set(turn)) == len(turn) for turn in turns)


# ── giving it up ─────────────────────────────────────────────────────────────────────


def _measure_handover(url: str, plan: RetainedPlan, second: Connection) -> Summary:
    took_ms = []
    with lockfast.connect(url) as client:
        lock = client.lock(NAME, retain=True)
        for _ in range(plan.rounds * plan.handovers_per_round):
            with lock:
                second.send(("take",))
                while client.inspect(NAME).waiting_count == 0:
                    time.sleep(0.001)
                time.sleep(0.005)  # until both are idle
                releasing_ns = time.monotonic_ns()
            took_ms.append((_answer(second) - releasing_ns) / 1e6)
    return summary(took_ms)


# ── the second process ───────────────────────────────────────────────────────────────


@contextmanager
def _second_process(url: str) -> Iterator[Connection]:
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_serve, args=(theirs, url), daemon=True)
    process.start()
    theirs.close()
    try:
        _answer(ours)
        yield ours
    finally:
        ours.close()
        process.join(5.0)
        if process.is_alive():
            process.kill()


def _order(pipe: Connection, order: tuple[Any, ...]) -> None:
    pipe.send(order)
    _answer(pipe)


def _answer(pipe: Connection) -> int:
    if not pipe.poll(ANSWER_TIMEOUT_S):
        raise CrewError(f"the second process did not answer within {ANSWER_TIMEOUT_S:g} s")
    try:
        answer: int = pipe.recv()
    except EOFError:
        raise CrewError("the second process ended unexpectedly") from None
    return answer


def _serve(pipe: Connection, url: str) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with lockfast.connect(url) as client:
        lock = client.lock(NAME)
        lock.acquire().release()
        pipe.send(0)
        while True:
            try:
                order = pipe.recv()
            except EOFError:
                return
            if order[0] == "take":
                with lock:
                    pipe.send(time.monotonic_ns())
            elif order[0] == "contend":
                pipe.send(0)
                grants = 0
                while not pipe.poll(order[1] / 1000):
                    with lock:
                        grants += 1
                pipe.recv()
                pipe.send(grants)


# ── the report ───────────────────────────────────────────────────────────────────────


def targets_retained(figures: Retained) -> list[Target]:
    pair = figures.pair_us.median
    now_and_then = figures.busy[_label(WANTED_EVERY_MS[1])]
    handover = figures.handover_ms.median
    return [
        Target(
            f"retained acquire + release at most {PAIR_US_MAX:g} µs",
            f"{pair:.1f} µs",
            pair <= PAIR_US_MAX,
        ),
        Target("a higher token each time", str(figures.rising).lower(), figures.rising),
        Target(
            f"{TASKS} tasks: at least {SHARE_MIN:g} × asyncio.Lock, and others get their share",
            f"{now_and_then.share:.2f} ×, {now_and_then.others} grants to others",
            now_and_then.share >= SHARE_MIN and now_and_then.others > 0,
        ),
        Target(
            f"another process has it within {HANDOVER_MS_MAX:g} ms of the release",
            f"{handover:.2f} ms",
            handover <= HANDOVER_MS_MAX,
        ),
    ]


def report_retained(figures: Retained) -> str:
    pair, handover = figures.pair_us, figures.handover_ms
    lines = [
        "Retained acquire + release, one process",
        f"  median {pair.median:.1f} µs, p99 {pair.p99:.1f} µs, {pair.count} pairs, "
        f"{figures.store_operations} store operations",
        "",
        f"{TASKS} tasks of one client on one lock, grants per second",
        "  others want it    asyncio.Lock    retained    share    to others    in turn",
    ]
    for label, busy in figures.busy.items():
        lines.append(
            f"  {label:16}  {busy.asyncio_lock:12,.0f}  {busy.retained:10,.0f}"
            f"  {busy.share:7.2f}  {busy.others:11}    {'yes' if busy.in_order else 'no'}"
        )
    lines += [
        "",
        "From the local release until the waiting second process has it",
        f"  median {handover.median:.2f} ms, p99 {handover.p99:.2f} ms, {handover.count} samples",
        "",
        "Targets",
    ]
    for target in targets_retained(figures):
        lines.append(f"  {'met   ' if target.met else 'MISSED'}  {target.text}: {target.measured}")
    return "\n".join(lines)
