"""The ZooKeeper store against a floor and against other locks on one ZooKeeper server.

The floor is the least that a lock with a token can cost: two writes through kazoo, which create an
ephemeral node and delete it.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

from bench.contention import Contention, measure_contention
from bench.contestants import Contestant, Lockfast
from bench.crew import Crew
from bench.embedded import MANY, Plan
from bench.figures import Summary
from bench.idle import measure_idle_handover
from bench.order import Order, measure_order
from bench.report import Target, table
from bench.uncontended import Uncontended, measure_uncontended
from tests.servers.proxy import Proxy
from tests.servers.zookeeper import ZooKeeperEnsemble, ZooKeeperMember

__all__ = ["KINDS", "ZooKeeperFigures", "report_zookeeper", "run_zookeeper", "targets_zookeeper"]

FLOOR_TIMES_MAX = 1.15
CONTENDED_TIMES_MIN = 1.2
START_S = 30.0
TTL_S = 30.0

WARM_UP_PAIRS = 300
"""Run before any measurement: until then the server interprets its bytecode."""
LINES = (20, 1_000)
"""How many claims wait while the cost of a grant is measured."""
LINE_GRANTS = 15
LINE_CLIENTS = 4
LINE_S = 300.0


def _hosts(directory: Path) -> str:
    return (directory / "hosts").read_text()


def _kazoo(hosts: str) -> Any:
    from kazoo.client import KazooClient

    client = KazooClient(hosts, timeout=TTL_S)
    client.start(timeout=START_S)
    return client


class ZooKeeperFloor(Contestant):
    name = "floor"

    def __init__(self, directory: Path) -> None:
        self._client = _kazoo(_hosts(directory))

    def acquire(self) -> None:
        self._client.create("/floor", b"us" * 50, ephemeral=True)

    def release(self) -> None:
        self._client.delete("/floor")

    def close(self) -> None:
        self._client.stop()
        self._client.close()


class LockfastZooKeeper(Lockfast):
    @staticmethod
    def url(directory: Path) -> str:
        return f"zookeeper://{_hosts(directory)}"


class KazooLock(Contestant):
    """kazoo's own recipe, `kazoo.recipe.lock`."""

    name = "kazoo"

    def __init__(self, directory: Path) -> None:
        self._client = _kazoo(_hosts(directory))
        self._lock = self._client.Lock("/kazoo-bench", str(id(self)))

    def acquire(self) -> None:
        self._lock.acquire()

    def release(self) -> None:
        self._lock.release()

    def close(self) -> None:
        self._client.stop()
        self._client.close()


class Tooz(Contestant):
    name = "tooz"

    def __init__(self, directory: Path) -> None:
        from tooz import coordination

        url = f"kazoo://{_hosts(directory)}"
        self._coordinator = coordination.get_coordinator(url, str(id(self)).encode())
        self._coordinator.start()
        self._lock = self._coordinator.get_lock(b"bench")

    def acquire(self) -> None:
        self._lock.acquire()

    def release(self) -> None:
        self._lock.release()

    def close(self) -> None:
        self._coordinator.stop()


KINDS: tuple[type[Contestant], ...] = (LockfastZooKeeper, KazooLock, Tooz)


# ── long lines ───────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Line:
    """The cost of one grant with this many waiters."""

    wakes: float
    """Watches that the server fired."""
    read_bytes: float
    """Bytes that all clients together read."""


class _Meter:
    """Counts the traffic between all clients and the server."""

    def __init__(self, member: ZooKeeperMember, proxy: Proxy) -> None:
        self._member, self._proxy = member, proxy
        self._wakes_before = 0

    def begin(self) -> None:
        self._wakes_before = self._wakes()
        self._proxy.arm(None)

    def end(self, grants: int) -> Line:
        read = self._proxy.passed("reply")
        return Line((self._wakes() - self._wakes_before) / grants, read / grants)

    def _wakes(self) -> int:
        """Return the number of watches fired so far, of any kind."""
        counted = self._member.counters()
        return sum(
            value
            for name, value in counted.items()
            if name.startswith("zk_sum_node_") and name.endswith("_watch_count")
        )


def lockfast_line(hosts: str, waiters: int, meter: _Meter) -> Line:
    return asyncio.run(asyncio.wait_for(_lockfast_line(hosts, waiters, meter), LINE_S))


async def _lockfast_line(hosts: str, waiters: int, meter: _Meter) -> Line:
    import lockfast.aio

    url = f"zookeeper://{hosts}?namespace=line-{waiters}"
    clients = [lockfast.aio.connect(url, ttl=TTL_S) for _ in range(LINE_CLIENTS)]
    grants, enough = 0, asyncio.Event()

    async def wait(client: Any) -> None:
        nonlocal grants
        lease = await client.lock("line").acquire(timeout=LINE_S)
        grants += 1
        if grants >= LINE_GRANTS:
            enough.set()
            return
        await lease.release()

    held = await clients[0].lock("line").acquire(timeout=LINE_S)
    tasks = []
    for number in range(waiters):
        tasks.append(asyncio.create_task(wait(clients[number % LINE_CLIENTS])))
    while (await clients[0].inspect("line")).waiting_count < waiters:
        await asyncio.wait(tasks, timeout=0.1)
    meter.begin()
    await held.release()
    await enough.wait()
    found = meter.end(LINE_GRANTS)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    for client in clients:
        await client.close()
    return found


def kazoo_line(hosts: str, waiters: int, meter: _Meter) -> Line:
    """Measure with one thread per waiter, because kazoo's recipe blocks."""
    clients = [_kazoo(hosts) for _ in range(LINE_CLIENTS)]
    path = f"/kazoo-line-{waiters}"
    grants, enough, counting = 0, threading.Event(), threading.Lock()

    def wait(lock: Any) -> None:
        nonlocal grants
        try:
            lock.acquire(timeout=LINE_S)
        except Exception:
            return  # its client was closed when enough had been granted
        with counting:
            grants += 1
            if grants >= LINE_GRANTS:
                enough.set()
                return
        lock.release()

    held = clients[0].Lock(path, "holder")
    held.acquire()
    for number in range(waiters):
        lock = clients[number % LINE_CLIENTS].Lock(path, str(number))
        threading.Thread(target=wait, args=(lock,), daemon=True).start()
    while len(clients[0].get_children(path)) < waiters + 1:
        enough.wait(0.1)
    # Every waiter has joined; give each time to read the line and watch its predecessor.
    enough.wait(2.0)
    meter.begin()
    held.release()
    enough.wait(LINE_S)
    found = meter.end(LINE_GRANTS)
    for client in clients:
        client.stop()
        client.close()
    return found


LINE_OF: dict[str, Callable[[str, int, _Meter], Line]] = {
    LockfastZooKeeper.name: lockfast_line,
    KazooLock.name: kazoo_line,
}


def measure_lines(
    member: ZooKeeperMember, without: Sequence[str], progress: Callable[[str], None]
) -> dict[str, dict[int, Line]]:
    found: dict[str, dict[int, Line]] = {}
    for name, measure in LINE_OF.items():
        if name in without:
            continue
        for waiters in LINES:
            progress(f"{waiters:,} waiters, {name}")
            with Proxy(("127.0.0.1", member.port)) as proxy:
                line = measure(proxy.address, waiters, _Meter(member, proxy))
            found.setdefault(name, {})[waiters] = line
    return found


# ── all figures ──────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class ZooKeeperFigures:
    """All figures, by the contestant's name."""

    server: str
    uncontended: dict[str, Uncontended]
    idle_ms: dict[str, Summary]
    contention: dict[str, Contention]
    order: dict[str, Order]
    lines: dict[str, dict[int, Line]]
    """By contestant and number of waiters."""


def run_zookeeper(
    plan: Plan, without: Sequence[str], progress: Callable[[str], None]
) -> ZooKeeperFigures:
    kinds = [kind for kind in KINDS if kind.name not in without]
    # kazoo logs every connection that ends, including those of finished measurements.
    logging.getLogger("kazoo").setLevel(logging.CRITICAL)
    with ExitStack() as stack:
        node = stack.enter_context(ZooKeeperEnsemble())
        directory = Path(stack.enter_context(TemporaryDirectory(prefix="lockfast-bench-")))
        (directory / "hosts").write_text(node.hosts())
        (member,) = node.members
        version = member.ask("srvr").split(":", 1)[1].split("-")[0].strip()
        progress("uncontended")
        measured: list[type[Contestant]] = [ZooKeeperFloor, *kinds]
        locks = [kind(directory) for kind in measured]
        for _ in range(WARM_UP_PAIRS):
            locks[0].acquire()
            locks[0].release()
        uncontended = measure_uncontended(
            locks, rounds=plan.rounds, pairs_per_round=max(10, plan.pairs_per_round // 10)
        )
        for lock in locks:
            lock.close()
        lines = measure_lines(member, without, progress)
        progress(f"starting {MANY} processes for each of {len(kinds)}")
        crews = [stack.enter_context(Crew(kind, directory, MANY)) for kind in kinds]
        progress("idle hand-over")
        idle_ms = measure_idle_handover(
            crews, rounds=plan.rounds, handovers_per_round=plan.handovers_per_round
        )
        progress(f"contention of {MANY} processes")
        contention = measure_contention(
            crews,
            rounds=max(1, plan.rounds // 2),
            processes=MANY,
            grants_per_process=max(5, plan.grants_per_process // 20),
        )
        progress("order of grants")
        order = measure_order(crews, rounds=max(1, plan.rounds // 2))
    return ZooKeeperFigures(version, uncontended, idle_ms, contention, order, lines)


def targets_zookeeper(figures: ZooKeeperFigures) -> list[Target]:
    """Return the targets that this run can judge."""
    return list(_judged(figures)) if LockfastZooKeeper.name in figures.uncontended else []


def _judged(figures: ZooKeeperFigures) -> Iterator[Target]:
    ours, kazoo = LockfastZooKeeper.name, KazooLock.name
    ratio = figures.uncontended[ours].times(figures.uncontended[ZooKeeperFloor.name])
    text = f"uncontended at most {FLOOR_TIMES_MAX:g} × the floor"
    yield Target(text, f"{ratio:.2f} ×", ratio <= FLOOR_TIMES_MAX)
    if kazoo in figures.contention:
        ratio = figures.idle_ms[kazoo].median / figures.idle_ms[ours].median
        yield Target("idle hand-over quicker than kazoo", f"{ratio:.2f} ×", ratio > 1)
        mine, theirs = figures.contention[ours], figures.contention[kazoo]
        ratio = mine.grants_per_s / theirs.grants_per_s
        text = f"{MANY} processes: at least {CONTENDED_TIMES_MIN:g} × kazoo's grants"
        yield Target(text, f"{ratio:.2f} ×", ratio >= CONTENDED_TIMES_MIN)
    order = figures.order[ours]
    yield Target(
        "every grant goes to the longest waiter",
        f"{order.to_longest_waiter} of {order.grants}",
        order.to_longest_waiter == order.grants,
    )
    shortest, longest = (figures.lines[ours][waiters] for waiters in (LINES[0], LINES[-1]))
    text = f"{LINES[-1]:,} waiters: at most one wake per grant"
    yield Target(text, f"{longest.wakes:.2f}", longest.wakes <= 1)
    yield Target(
        f"a grant among {LINES[-1]:,} waiters reads what one among {LINES[0]} does",
        f"{longest.read_bytes:,.0f} and {shortest.read_bytes:,.0f} B",
        longest.read_bytes <= shortest.read_bytes * 1.1,
    )


def report_zookeeper(figures: ZooKeeperFigures) -> str:
    floor = median(figures.uncontended[ZooKeeperFloor.name].round_medians_us)
    pairs, idle = figures.uncontended, figures.idle_ms
    rows = [
        (
            name,
            f"{pairs[name].pair_us.median:.0f}",
            f"{median(pairs[name].round_medians_us) / floor:.2f}",
            f"{idle[name].median:.2f}" if name in idle else "",
            f"{figures.contention[name].grants_per_s:,.0f}" if name in figures.contention else "",
            f"{figures.contention[name].overlaps}" if name in figures.contention else "",
            f"{figures.order[name].share:.0%}" if name in figures.order else "",
        )
        for name in pairs
    ]
    heads = (
        *("", "pair µs", "× floor", "hand-over ms"),
        *(f"grants/s of {MANY}", "overlaps", "in turn"),
    )
    title = f"ZooKeeper {figures.server}, one server, without fsync (floor: two writes of kazoo)"
    lines = [
        (name, f"{waiters:,}", f"{line.wakes:.2f}", f"{line.read_bytes:,.0f}")
        for name, by_length in figures.lines.items()
        for waiters, line in by_length.items()
    ]
    judged = [
        (target.text, target.measured, "met" if target.met else "missed")
        for target in targets_zookeeper(figures)
    ]
    return "\n\n".join(
        [
            table(title, heads, rows),
            table("One grant", ("", "waiters", "wakes", "bytes read"), lines),
            table("Targets", ("", "measured", ""), judged),
        ]
    )
