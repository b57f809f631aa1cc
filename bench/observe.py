"""The cost of observing: an uncontended pair with observers off, null, metrics and traces.

All variants are measured in turn within each round, in one process per API. The figure is the CPU
time of the whole process, observers' threads included, in its best round: other load on the machine
can only add to it. Each variant ends when its observer has received everything.

With `--before`, the source tree of another version is measured in the same rounds, which shows the
cost of the port itself without observers. Bytecode instructions are counted as well: they do not
depend on the load of the machine.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

__all__ = ["ObservePlan", "report_observe", "run_observe"]

FACES = ("blocking", "asyncio")
VARIANTS = ("off", "null", "metrics", "traces")
STORES = ("memory", "sqlite")


class ObservePlan(NamedTuple):
    rounds: int = 40
    pairs_per_round: int = 150


class Cost(NamedTuple):
    """CPU microseconds per pair in the best round, and their ratio to "off"."""

    us: float
    ratio: float
    instructions: int
    """Bytecode instructions of one pair, in the caller's thread."""


Costs = dict[tuple[str, str, str], Cost]
"""By store, API and variant."""


def run_observe(plan: ObservePlan, before: Path | None, progress: Callable[[str], None]) -> Costs:
    found: Costs = {}
    with tempfile.TemporaryDirectory(prefix="lockfast-bench-") as directory:
        for store in STORES:
            for face in FACES:
                url = "memory://" if store == "memory" else f"sqlite://{directory}/{face}.db"
                progress(f"{store}, {face}: {', '.join(VARIANTS)} in turn")
                found.update(_measure(plan, store, face, url, before))
    return found


def _measure(plan: ObservePlan, store: str, face: str, url: str, before: Path | None) -> Costs:
    here = Path(__file__).resolve().parents[1] / "src"
    crew = {"": _Worker(here, face, url, plan.pairs_per_round)}
    variants: list[tuple[str, str]] = [("", variant) for variant in VARIANTS]
    if before is not None:
        crew["before"] = _Worker(
            before, face, f"{url}.before" if store != "memory" else url, plan.pairs_per_round
        )
        variants.insert(1, ("before", "off"))
    rounds: dict[str, list[float]] = {}
    counts: dict[str, int] = {}
    try:
        for number in range(plan.rounds + 1):
            # Rotate the order, so that no variant always follows the same one.
            turn = variants[number % len(variants) :] + variants[: number % len(variants)]
            for who, variant in turn:
                us = crew[who].pair_us(variant)
                if number:  # the first round warms up
                    rounds.setdefault(who or variant, []).append(us)
        for who, variant in variants:
            counts[who or variant] = int(crew[who].pair_us(f"count {variant}"))
    finally:
        for worker in crew.values():
            worker.close()
    best = {variant: min(found) for variant, found in rounds.items()}
    return {
        (store, face, variant): Cost(us, us / best["off"], counts[variant])
        for variant, us in best.items()
    }


def report_observe(costs: Costs) -> Iterator[str]:
    yield _line("store", "face", "observers", "CPU µs", "ratio to off", "bytecodes")
    for (store, face, variant), (us, ratio, instructions) in costs.items():
        yield _line(store, face, variant, f"{us:.1f}", f"{ratio:.3f}", str(instructions))


def _line(*cells: str) -> str:
    store, face, variant, us, ratio, instructions = cells
    return f"{store:<8}{face:<10}{variant:<11}{us:>10}{ratio:>14}{instructions:>11}"


class _Worker:
    """A process that measures one source tree."""

    def __init__(self, source: Path, face: str, url: str, pairs: int) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-P", __file__, str(source), face, url, str(pairs)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def pair_us(self, variant: str) -> float:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(variant, file=self._process.stdin, flush=True)
        return float(json.loads(self._process.stdout.readline()))

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()


# ── in the process that measures ─────────────────────────────────────────────────────


@contextmanager
def _observing(variant: str) -> Iterator[Callable[[], object]]:
    """Enable one variant; yield a function that waits until everything is delivered."""
    if variant == "off":
        yield lambda: None
        return
    subscription: Any
    if variant == "null":
        import lockfast

        subscription = lockfast.observe(lambda event: None)
    elif variant == "metrics":
        from prometheus_client import CollectorRegistry

        from lockfast import metrics

        subscription = metrics.enable(CollectorRegistry())
    else:
        from opentelemetry.sdk.trace import TracerProvider

        from lockfast import otel

        subscription = otel.enable(TracerProvider())
    with subscription:
        yield subscription.flush


def _work(source: str, face: str, url: str, pairs: int) -> None:
    sys.path.insert(0, source)
    import lockfast
    import lockfast.aio

    def blocking(client: Any) -> None:
        lock = client.lock("bench")
        for _ in range(pairs):
            with lock:
                pass

    async def in_loop(client: Any) -> None:
        lock = client.lock("bench")
        for _ in range(pairs):
            async with lock:
                pass

    if face == "blocking":
        client: Any = lockfast.connect(url)

        def measured() -> None:
            blocking(client)
    else:
        loop = asyncio.new_event_loop()
        client = loop.run_until_complete(_connect(url))

        def measured() -> None:
            loop.run_until_complete(in_loop(client))

    for line in sys.stdin:
        *counted, variant = line.split()
        with _observing(variant) as delivered:
            if counted:
                print(json.dumps(_instructions(measured) / pairs), flush=True)
                continue
            began = time.process_time_ns()
            measured()
            delivered()
            spent = time.process_time_ns() - began
        print(json.dumps(spent / pairs / 1000), flush=True)


def _instructions(job: Callable[[], object]) -> int:
    """Count the bytecode instructions that Lockfast executes in this thread."""
    count = 0

    def trace(frame: FrameType, event: str, argument: object) -> Any:
        nonlocal count
        if "lockfast" not in frame.f_code.co_filename:
            return None
        frame.f_trace_opcodes = True
        count += event == "opcode"
        return trace

    sys.settrace(trace)
    try:
        job()
    finally:
        sys.settrace(None)
    return count


async def _connect(url: str) -> Any:
    import lockfast.aio

    return lockfast.aio.connect(url)


if __name__ == "__main__":
    _work(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]))
