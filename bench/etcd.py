"""The etcd store against a floor and against other locks in one etcd node.

The floor is the least a lock with a token can cost: two transactions of the gateway on one
connection, which put a key if it is absent and delete it if it is ours.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from random import Random
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import lockfast.aio
from bench.contention import Contention, measure_contention
from bench.contestants import Contestant, Lockfast
from bench.crew import Crew
from bench.embedded import MANY, Plan
from bench.figures import Summary
from bench.idle import measure_idle_handover
from bench.order import Order, measure_order
from bench.report import Target, table
from bench.uncontended import Uncontended, measure_uncontended
from lockfast.stores.etcd.requests import TXN, Keys, txn
from lockfast.stores.http.blocking import Connection
from lockfast.stores.http.members import Member, Members
from lockfast.stores.http.messages import Request
from tests.etcd.lines import serve
from tests.servers.etcd import EtcdCluster

__all__ = ["KINDS", "EtcdFigures", "report_etcd", "run_etcd", "targets_etcd"]

FLOOR_TIMES_MAX = 1.2
MANY_TIMES_MIN = 3
TTL_S = 30
POLL_S = 0.005
"""How often a lock that cannot wait is polled."""


def _port(directory: Path) -> int:
    return int((directory / "port").read_text())


class EtcdFloor(Contestant):
    name = "floor"

    def __init__(self, directory: Path) -> None:
        member = Member("127.0.0.1", _port(directory))
        members = Members("floor", [member])
        self._connection = Connection(members, member, time.monotonic() + 5)
        keys = Keys("floor/", "floor")
        take = txn([keys.put("x", "us" * 50)], [keys.unchanged("x", 0)])
        give = txn([keys.delete("x")], [keys.present("x")])
        self._take, self._give = (
            Request(TXN, body.encode()).packed(str(member)) for body in (take, give)
        )

    def acquire(self) -> None:
        self._connection.exchange(self._take, time.monotonic() + 5)

    def release(self) -> None:
        self._connection.exchange(self._give, time.monotonic() + 5)

    def close(self) -> None:
        self._connection.close()


class LockfastEtcd(Lockfast):
    @staticmethod
    def url(directory: Path) -> str:
        return f"etcd://127.0.0.1:{_port(directory)}"


class Aetcd(Contestant):
    """aetcd's asyncio lock, run on its own event loop."""

    name = "aetcd"

    def __init__(self, directory: Path) -> None:
        import aetcd

        self._loop = asyncio.new_event_loop()

        async def connect() -> Any:
            client = aetcd.Client(host="127.0.0.1", port=_port(directory))
            await client.connect()
            return client

        self._client = self._loop.run_until_complete(connect())
        self._lock = self._client.lock(b"aetcd", ttl=TTL_S)

    def acquire(self) -> None:
        self._loop.run_until_complete(self._lock.acquire(timeout=None))

    def release(self) -> None:
        self._loop.run_until_complete(self._lock.release())

    def close(self) -> None:
        self._loop.run_until_complete(self._client.close())
        self._loop.close()


class Etcd3gw(Contestant):
    """etcd3gw's lock, which cannot wait and is therefore polled."""

    name = "etcd3gw"

    def __init__(self, directory: Path) -> None:
        import etcd3gw

        client = etcd3gw.client(host="127.0.0.1", port=_port(directory))
        self._lock = client.lock("etcd3gw", ttl=TTL_S)

    def acquire(self) -> None:
        while not self._lock.acquire():
            time.sleep(POLL_S)

    def release(self) -> None:
        self._lock.release()


class Tooz(Contestant):
    name = "tooz"

    def __init__(self, directory: Path) -> None:
        from tooz import coordination

        url = f"etcd3+http://127.0.0.1:{_port(directory)}"
        self._coordinator = coordination.get_coordinator(url, str(id(self)).encode())
        self._coordinator.start()
        self._lock = self._coordinator.get_lock(b"bench")

    def acquire(self) -> None:
        self._lock.acquire()

    def release(self) -> None:
        self._lock.release()

    def close(self) -> None:
        self._coordinator.stop()


KINDS: tuple[type[Contestant], ...] = (LockfastEtcd, Aetcd, Etcd3gw, Tooz)


TASKS = 64
NAMES = 10_000
LINES = (10, 1_000, 10_000)
LINE_GRANTS = 10


async def _lockfast_takes(port: int) -> AsyncIterator[Callable[[str], Awaitable[None]]]:
    async with lockfast.aio.connect(f"etcd://127.0.0.1:{port}") as client:

        async def take(name: str) -> None:
            async with client.lock(name):
                pass

        yield take


async def _aetcd_takes(port: int) -> AsyncIterator[Callable[[str], Awaitable[None]]]:
    import aetcd

    client = aetcd.Client(host="127.0.0.1", port=port)
    await client.connect()

    async def take(name: str) -> None:
        lock = client.lock(name.encode(), ttl=TTL_S)
        await lock.acquire(timeout=None)
        await lock.release()

    yield take
    await client.close()


async def _many(
    takes: AsyncIterator[Callable[[str], Awaitable[None]]], span_s: float, seed: int
) -> float:
    """Return the pairs per second of TASKS tasks, each on random names."""
    done = 0
    async for take in takes:
        stop_s = time.monotonic() + span_s

        async def work(chance: Random, take: Any = take, stop_s: float = stop_s) -> None:
            nonlocal done
            while time.monotonic() < stop_s:
                await take(f"name/{chance.randrange(NAMES)}")
                done += 1

        await asyncio.gather(*(work(Random(f"{seed}-{i}")) for i in range(TASKS)))
    return done / span_s


def measure_many(port: int, without: Sequence[str], rounds: int, span_s: float) -> dict[str, float]:
    """Return medians over alternating rounds."""
    kinds = {LockfastEtcd.name: _lockfast_takes, Aetcd.name: _aetcd_takes}
    found: dict[str, list[float]] = {name: [] for name in kinds if name not in without}
    for number in range(rounds):
        for name, rates in found.items():
            rates.append(asyncio.run(_many(kinds[name](port), span_s, number)))
    return {name: median(rates) for name, rates in found.items()}


@dataclass(frozen=True)
class EtcdFigures:
    """All figures, by the contestant's name."""

    server: str
    many: dict[str, float]
    """Pairs per second of many tasks on many names."""
    lines: dict[int, tuple[float, float]]
    """Requests and bytes per grant, by the number of waiters; on the model of etcd."""
    uncontended: dict[str, Uncontended]
    idle_ms: dict[str, Summary]
    contention: dict[str, Contention]
    order: dict[str, Order]


def run_etcd(plan: Plan, without: Sequence[str], progress: Callable[[str], None]) -> EtcdFigures:
    kinds = [kind for kind in KINDS if kind.name not in without]
    with ExitStack() as stack:
        node = stack.enter_context(EtcdCluster(1))
        directory = Path(stack.enter_context(TemporaryDirectory(prefix="lockfast-bench-")))
        (directory / "port").write_text(str(node.members[0].port))
        version = str(node.call("/v3/maintenance/status", {})["version"])
        progress("uncontended")
        measured: list[type[Contestant]] = [EtcdFloor, *kinds]
        locks = [kind(directory) for kind in measured]
        uncontended = measure_uncontended(
            locks, rounds=plan.rounds, pairs_per_round=max(10, plan.pairs_per_round // 10)
        )
        for lock in locks:
            lock.close()
        progress(f"{TASKS} tasks on {NAMES:,} names")
        many = measure_many(node.members[0].port, without, max(1, plan.rounds // 2), 2.0)
        progress("long lines")
        served = {waiters: serve(2, waiters, LINE_GRANTS) for waiters in LINES}
        lines = {n: (one.requests_per_grant, one.bytes_per_grant) for n, one in served.items()}
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
    return EtcdFigures(version, many, lines, uncontended, idle_ms, contention, order)


def targets_etcd(figures: EtcdFigures) -> list[Target]:
    """Return the targets that this run can judge."""
    return list(_judged(figures)) if LockfastEtcd.name in figures.uncontended else []


def _judged(figures: EtcdFigures) -> Iterator[Target]:
    ours = LockfastEtcd.name
    pair = figures.uncontended[ours]
    ratio = pair.times(figures.uncontended[EtcdFloor.name])
    text = f"uncontended at most {FLOOR_TIMES_MAX:g} × the floor"
    yield Target(text, f"{ratio:.2f} ×", ratio <= FLOOR_TIMES_MAX)
    for peer in figures.order.keys() - {ours}:
        ratio = figures.uncontended[peer].times(pair)
        yield Target(f"uncontended quicker than {peer}", f"{ratio:.2f} ×", ratio > 1)
        ratio = figures.idle_ms[peer].median / figures.idle_ms[ours].median
        yield Target(f"idle hand-over quicker than {peer}", f"{ratio:.2f} ×", ratio > 1)
        mine, theirs = figures.contention[ours], figures.contention[peer]
        ratio = mine.grants_per_s / theirs.grants_per_s
        yield Target(f"{MANY} processes: more grants than {peer}", f"{ratio:.2f} ×", ratio > 1)
    if Aetcd.name in figures.many:
        ratio = figures.many[ours] / figures.many[Aetcd.name]
        text = f"{TASKS} tasks on {NAMES:,} names: at least {MANY_TIMES_MIN:g} × aetcd"
        yield Target(text, f"{ratio:.2f} ×", ratio >= MANY_TIMES_MIN)
    shortest, longest = figures.lines[LINES[0]], figures.lines[LINES[-1]]
    yield Target(
        f"a grant among {LINES[-1]:,} waiters costs what one among {LINES[0]} does",
        " and ".join(f"{n:.1f} requests, {size:,.0f} B" for n, size in (longest, shortest)),
        longest[0] <= shortest[0] * 1.1 and longest[1] <= shortest[1] * 1.1,
    )
    order = figures.order[ours]
    yield Target(
        "every grant goes to the longest waiter",
        f"{order.to_longest_waiter} of {order.grants}",
        order.to_longest_waiter == order.grants,
    )


def report_etcd(figures: EtcdFigures) -> str:
    floor = median(figures.uncontended[EtcdFloor.name].round_medians_us)
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
            f"{figures.many[name]:,.0f}" if name in figures.many else "",
        )
        for name in pairs
    ]
    heads = (
        "",
        "pair µs",
        "× floor",
        "hand-over ms",
        f"grants/s of {MANY}",
        "overlaps",
        "in turn",
        f"pairs/s of {TASKS} tasks",
    )
    title = f"etcd {figures.server}, one node, without fsync (floor: two gateway transactions)"
    judged = [(t.text, t.measured, "met" if t.met else "missed") for t in targets_etcd(figures)]
    return "\n\n".join([table(title, heads, rows), table("Targets", ("", "measured", ""), judged)])
