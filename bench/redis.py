"""The Redis store against a floor and against other locks in one Redis server.

The floor is the least that a lock with a token can cost: two EVALSHA on a bare redis-py connection,
of scripts that set and delete one key. It runs alone, without contention.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from bench.contention import Contention, measure_contention
from bench.contestants import NEVER_S, Contestant, Lockfast
from bench.crew import Crew
from bench.embedded import MANY, Plan
from bench.figures import Summary
from bench.idle import measure_idle_handover
from bench.order import Order, measure_order
from bench.report import Target, table
from bench.uncontended import Uncontended, conclude, measure_uncontended
from lockfast.core.commands import Command, Enter, Granted, Leave, Open, Place, Queued
from lockfast.runtimes.threads import run
from lockfast.stores.redis import scripts
from lockfast.stores.redis.address import parse
from lockfast.stores.redis.protocol import ScriptProtocol
from lockfast.stores.redis.resp import pack
from lockfast.stores.redis.wire import BlockingWire
from lockfast.stores.registry import parse_url
from tests.servers.redis import RedisServer

__all__ = ["KINDS", "RedisFigures", "report_redis", "run_redis", "targets_redis"]

FLOOR_TIMES_MAX = 1.3
REDIS_PY_TIMES_MIN = 2.0
IDLE_TIMES_MIN = 100.0
JAIN_MIN = 0.99
TTL_S = 30


def _socket(directory: Path) -> str:
    return str(directory / "redis.sock")


def _connect(directory: Path) -> Any:
    import redis

    return redis.Redis(unix_socket_path=_socket(directory))


class RedisFloor(Contestant):
    name = "floor"

    def __init__(self, directory: Path) -> None:
        self._client = _connect(directory)
        self._take = self._client.script_load(
            "if redis.call('SET', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[2]) then"
            " return redis.call('INCR', KEYS[2]) end return 0"
        )
        self._give = self._client.script_load(
            "if redis.call('GET', KEYS[1]) == ARGV[1] then"
            " return redis.call('DEL', KEYS[1]) end return 0"
        )
        self._connection = self._client.connection_pool.get_connection()

    def acquire(self) -> None:
        connection = self._connection
        connection.send_command("EVALSHA", self._take, 2, "floor", "token", "us", TTL_S * 1000)
        connection.read_response()

    def release(self) -> None:
        self._connection.send_command("EVALSHA", self._give, 1, "floor", "us")
        self._connection.read_response()

    def close(self) -> None:
        self._connection.disconnect()
        self._client.close()


class LockfastRedis(Lockfast):
    @staticmethod
    def url(directory: Path) -> str:
        return f"unix://{_socket(directory)}"


class _OfAnotherLibrary(Contestant):
    _lock: Any

    def acquire(self) -> None:
        self._lock.acquire()

    def release(self) -> None:
        self._lock.release()


class RedisPy(_OfAnotherLibrary):
    name = "redis-py"

    def __init__(self, directory: Path) -> None:
        self._client = _connect(directory)
        self._lock = self._client.lock("redis-py", timeout=TTL_S)

    def close(self) -> None:
        self._client.close()


class PythonRedisLock(_OfAnotherLibrary):
    name = "python-redis-lock"

    def __init__(self, directory: Path) -> None:
        import redis_lock

        self._client = _connect(directory)
        self._lock = redis_lock.Lock(self._client, "python-redis-lock", expire=TTL_S)

    def close(self) -> None:
        self._client.close()


class Pottery(_OfAnotherLibrary):
    name = "pottery"

    def __init__(self, directory: Path) -> None:
        import pottery

        self._client = _connect(directory)
        self._lock = pottery.Redlock(key="pottery", masters={self._client}, auto_release_time=TTL_S)

    def close(self) -> None:
        self._client.close()


class PortalockerRedis(_OfAnotherLibrary):
    name = "portalocker"

    def __init__(self, directory: Path) -> None:
        import portalocker

        self._client = _connect(directory)
        self._lock = portalocker.RedisLock("portalocker", self._client, timeout=NEVER_S)

    def close(self) -> None:
        self._client.close()


KINDS: tuple[type[Contestant], ...] = (
    LockfastRedis,
    RedisPy,
    PythonRedisLock,
    Pottery,
    PortalockerRedis,
)


@dataclass(frozen=True)
class RedisFigures:
    """All figures, by the contestant's name."""

    server: str
    uncontended: dict[str, Uncontended]
    asyncio: dict[str, Uncontended]
    """The same pair of calls, for contestants with an asyncio API."""
    passing: dict[str, Uncontended]
    """An acquire that queues and the release that grants it, with and without the scripts'
    shortcuts for that."""
    idle_ms: dict[str, Summary]
    contention: dict[str, Contention]
    order: dict[str, Order]


def run_redis(plan: Plan, without: Sequence[str], progress: Callable[[str], None]) -> RedisFigures:
    kinds = [kind for kind in KINDS if kind.name not in without]
    with RedisServer() as server:
        directory = server.directory
        progress("uncontended")
        with _opened([RedisFloor, *kinds], directory) as locks:
            uncontended = measure_uncontended(
                locks, rounds=plan.rounds, pairs_per_round=plan.pairs_per_round
            )
        progress("uncontended, asyncio")
        faces = asyncio.run(_measure_asyncio(directory, plan))
        progress("queue and hand over, with and without shortcuts")
        passing = _measure_passing(directory, plan)
        with ExitStack() as stack:
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
                grants_per_process=plan.grants_per_process // 4,
            )
            progress("order of grants")
            order = measure_order(crews, rounds=max(1, plan.rounds // 2))
        version = str(server.run("INFO", "server")).partition("redis_version:")[2].split()[0]
    return RedisFigures(version, uncontended, faces, passing, idle_ms, contention, order)


@contextmanager
def _opened(kinds: Sequence[type[Contestant]], directory: Path) -> Iterator[list[Contestant]]:
    with ExitStack() as stack:
        locks = []
        for kind in kinds:
            locks.append(kind(directory))
            stack.callback(locks[-1].close)
        yield locks


async def _measure_asyncio(directory: Path, plan: Plan) -> dict[str, Uncontended]:
    import redis.asyncio

    import lockfast.aio

    async with (
        lockfast.aio.connect(f"unix://{_socket(directory)}") as ours,
        redis.asyncio.Redis(unix_socket_path=_socket(directory)) as theirs,
    ):
        lock = ours.lock("bench-asyncio", ttl=TTL_S)
        other = theirs.lock("redis-py-asyncio", timeout=TTL_S)

        async def lockfast_pair() -> None:
            lease = await lock.acquire()
            await lease.release()

        async def redis_py_pair() -> None:
            await other.acquire()
            await other.release()

        pairs: dict[str, Callable[[], Awaitable[None]]] = {
            LockfastRedis.name: lockfast_pair,
            RedisPy.name: redis_py_pair,
        }
        samples: dict[str, list[list[float]]] = {name: [] for name in pairs}
        for round_number in range(plan.rounds + 1):
            for name, pair in pairs.items():
                took_us = []
                for _ in range(plan.pairs_per_round):
                    started_ns = time.perf_counter_ns()
                    await pair()
                    took_us.append((time.perf_counter_ns() - started_ns) / 1e3)
                if round_number:  # the first warms up
                    samples[name].append(took_us)
        return {name: conclude(of_rounds) for name, of_rounds in samples.items()}


class _WithoutShortcuts(ScriptProtocol):
    """The scripts without the shortcuts for one writer behind another."""

    _PASSING = ("passing", "enter_last", "leave_next")

    def _script(self, kind: type) -> scripts.Script:
        parts = scripts._PARTS[kind]
        kept = tuple(part for part in parts if part not in self._PASSING)
        return scripts._make(kept, scripts.ONE_SHARD)

    def _call(self, kind: type, clock: str = "") -> tuple[str | bytes | int, ...]:
        return ("EVALSHA", self._script(kind).sha, len(self.keys), *self.keys)

    def loading(self, command: Command) -> bytes:
        return pack("SCRIPT", "LOAD", self._script(type(command)).body)


def _measure_passing(directory: Path, plan: Plan) -> dict[str, Uncontended]:
    """Let two sessions of one caller hand a lock to each other: no process has to wake up."""
    place = (Place("lock", "passing", "exclusive"),)
    wires: dict[str, BlockingWire] = {}
    holders: dict[str, tuple[str, int, str]] = {}
    for name, kind in (("shortcuts", ScriptProtocol), ("general path", _WithoutShortcuts)):
        url = f"unix://{_socket(directory)}?namespace=passing-{kind.__name__.lower()}"
        wires[name] = BlockingWire(kind(parse(parse_url(url))))
        for session in "ab":
            run(wires[name].send(Open(session, 3_600_000, session, inbox="i"), 5000))
        granted = run(wires[name].send(Enter("a", 1, place), 5000))
        assert isinstance(granted, Granted)
        holders[name] = ("a", 1, "b")
    samples: dict[str, list[list[float]]] = {name: [] for name in wires}
    for round_number in range(plan.rounds + 1):
        for name, wire in wires.items():
            took_us = []
            for _ in range(plan.pairs_per_round):
                holder, n, other = holders[name]
                enter = Enter(other, n if other == "b" else n + 1, place)
                started_ns = time.perf_counter_ns()
                queued = run(wire.send(enter, 5000))
                run(wire.send(Leave(holder, n, place), 5000))
                took_us.append((time.perf_counter_ns() - started_ns) / 1e3)
                assert isinstance(queued, Queued)
                holders[name] = (other, enter.n, holder)
            if round_number:  # the first warms up
                samples[name].append(took_us)
    for wire in wires.values():
        wire.close()
    return {name: conclude(of_rounds) for name, of_rounds in samples.items()}


def targets_redis(figures: RedisFigures) -> list[Target]:
    """Return the targets that this run can judge."""
    return list(_judged(figures))


def _judged(figures: RedisFigures) -> Iterator[Target]:
    ours = figures.uncontended.get(LockfastRedis.name)
    if ours is None:
        return
    ratio = ours.times(figures.uncontended[RedisFloor.name])
    text = f"uncontended at most {FLOOR_TIMES_MAX:g} × the floor"
    yield Target(text, f"{ratio:.2f} ×", ratio <= FLOOR_TIMES_MAX)
    faces = {"blocking": figures.uncontended, "asyncio": figures.asyncio}
    for face, results in faces.items():
        if RedisPy.name in results:
            ratio = results[RedisPy.name].times(results[LockfastRedis.name])
            text = f"uncontended at least {REDIS_PY_TIMES_MIN:g} × quicker than redis-py, {face}"
            yield Target(text, f"{ratio:.2f} ×", ratio >= REDIS_PY_TIMES_MIN)
    if RedisPy.name not in figures.order:
        return
    ratio = figures.idle_ms[RedisPy.name].median / figures.idle_ms[LockfastRedis.name].median
    text = f"idle hand-over at least {IDLE_TIMES_MIN:g} × quicker than redis-py"
    yield Target(text, f"{ratio:.0f} ×", ratio >= IDLE_TIMES_MIN)
    mine, theirs = figures.contention[LockfastRedis.name], figures.contention[RedisPy.name]
    ratio = mine.grants_per_s / theirs.grants_per_s
    text = f"{MANY} processes: at least {REDIS_PY_TIMES_MIN:g} × redis-py's grants per second"
    yield Target(text, f"{ratio:.2f} ×", ratio >= REDIS_PY_TIMES_MIN)
    yield Target(
        f"Jain index at least {JAIN_MIN}", f"{mine.fairness:.3f}", mine.fairness >= JAIN_MIN
    )
    order = figures.order[LockfastRedis.name]
    met = order.to_longest_waiter == order.grants
    yield Target(
        "every grant goes to the longest waiter",
        f"{order.to_longest_waiter} of {order.grants}",
        met,
    )


def report_redis(figures: RedisFigures) -> str:
    floor = figures.uncontended[RedisFloor.name]
    parts = [
        table(
            f"Uncontended acquire + release, Redis {figures.server} (floor: two EVALSHA, redis-py)",
            ("", "median µs", "p99 µs", "× floor"),
            [_pair_row(name, result, floor) for name, result in figures.uncontended.items()],
        ),
        table(
            "The same under asyncio",
            ("", "median µs", "p99 µs", "× floor"),
            [_pair_row(name, result, floor) for name, result in figures.asyncio.items()],
        ),
        table(
            "Acquire that queues + release that hands over to it, by one caller",
            ("", "median µs", "p99 µs", "× floor"),
            [_pair_row(name, result, floor) for name, result in figures.passing.items()],
        ),
        table(
            "Idle hand-over: the holder releases, until the one waiter has it",
            ("", "median ms", "p99 ms", "samples"),
            [
                (name, f"{took.median:.2f}", f"{took.p99:.2f}", str(took.count))
                for name, took in figures.idle_ms.items()
            ],
        ),
        table(
            f"{MANY} processes, each acquiring again as soon as it has released",
            ("", "grants/s", "hand-overs/s", "Jain", "most passed over", "overlaps"),
            [
                (
                    name,
                    f"{result.grants_per_s:,.0f}",
                    f"{result.handovers_per_s:,.0f}",
                    f"{result.fairness:.3f}",
                    str(result.most_passed),
                    str(result.overlaps),
                )
                for name, result in figures.contention.items()
            ],
        ),
        table(
            f"Grants that went to the longest waiter, {MANY} processes lined up",
            ("", "grants", "share"),
            [
                (name, f"{order.to_longest_waiter} of {order.grants}", f"{order.share:.0%}")
                for name, order in figures.order.items()
            ],
        ),
        table(
            "Targets",
            ("", "measured", ""),
            [(t.text, t.measured, "met" if t.met else "missed") for t in targets_redis(figures)],
        ),
    ]
    return "\n\n".join(parts)


def _pair_row(name: str, result: Uncontended, floor: Uncontended) -> tuple[str, ...]:
    times = median(result.round_medians_us) / median(floor.round_medians_us)
    return name, f"{result.pair_us.median:.1f}", f"{result.pair_us.p99:.1f}", f"{times:.2f}"
