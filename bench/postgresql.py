"""The PostgreSQL store against a floor and against other locks in one PostgreSQL server.

The floor is the least that a durable lock in a table can cost: two single-row upserts on one
psycopg connection, each committed to disk. Advisory locks write nothing and are lost with their
connection; they are included because they are widely used.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import lockfast
from bench.contention import Contention, measure_contention
from bench.contestants import Contestant, Lockfast
from bench.crew import Crew
from bench.embedded import MANY, Plan
from bench.figures import Summary
from bench.idle import measure_idle_handover
from bench.order import Order, measure_order
from bench.report import Target, table
from bench.uncontended import Uncontended, measure_uncontended
from tests.servers.postgresql import PostgresServer

__all__ = ["PostgresFigures", "report_postgresql", "run_postgresql", "targets_postgresql"]

LOCKS = 64
FLOOR_TIMES_MAX = 1.15
PARALLEL_TIMES_MIN = 3.0
POLL_S = 0.05


def _port(directory: Path) -> str:
    return (directory / "port").read_text()


def _conninfo(directory: Path) -> str:
    return f"host=127.0.0.1 port={_port(directory)} user=postgres dbname=postgres"


def _engine(directory: Path) -> Any:
    import sqlalchemy

    return sqlalchemy.create_engine(
        f"postgresql+psycopg://postgres@127.0.0.1:{_port(directory)}/postgres"
    )


class _OnPsycopg(Contestant):
    """One connection; every statement is prepared and runs in its own transaction."""

    def __init__(self, directory: Path) -> None:
        import psycopg

        self._connection = psycopg.connect(
            _conninfo(directory), autocommit=True, prepare_threshold=0
        )

    def _row(self, sql: str) -> Any:
        return self._connection.execute(sql).fetchone()

    def close(self) -> None:
        self._connection.close()


class PostgresFloor(_OnPsycopg):
    name = "floor"

    def acquire(self) -> None:
        self._row(
            "INSERT INTO floor VALUES ('orders/42', 1) ON CONFLICT (name) DO UPDATE"
            " SET token = floor.token + 1 RETURNING token"
        )

    release = acquire


class LockfastPostgres(Lockfast):
    @staticmethod
    def url(directory: Path) -> str:
        return f"postgresql://postgres@127.0.0.1:{_port(directory)}/postgres?namespace=bench"


class AdvisoryLock(_OnPsycopg):
    name = "pg_advisory_lock"

    def acquire(self) -> None:
        self._row("SELECT pg_advisory_lock(42)")

    def release(self) -> None:
        self._row("SELECT pg_advisory_unlock(42)")


class RowLock(_OnPsycopg):
    """A row marked as taken, as in job queues, polled at intervals."""

    name = "row with a state"

    def acquire(self) -> None:
        sql = (
            "UPDATE job SET state = 'doing' WHERE id = (SELECT id FROM job WHERE id = 42"
            " AND state = 'todo' FOR UPDATE SKIP LOCKED) RETURNING id"
        )
        while self._row(sql) is None:
            time.sleep(POLL_S)

    def release(self) -> None:
        self._row("UPDATE job SET state = 'todo' WHERE id = 42 RETURNING id")


class Pals(Contestant):
    """pals on psycopg 3 through SQLAlchemy; it uses advisory locks."""

    name = "pals"

    def __init__(self, directory: Path) -> None:
        import pals  # type: ignore[import-untyped]

        self._locker = pals.Locker("bench", create_engine_callable=lambda: _engine(directory))
        self._lock = self._locker.lock("orders/42", acquire_timeout=86_400_000)

    def acquire(self) -> None:
        if not self._lock.acquire():
            raise RuntimeError("pals did not acquire its lock")

    def release(self) -> None:
        self._lock.release()

    def close(self) -> None:
        self._locker.engine.dispose()


class SqlAlchemyDlock(Contestant):
    """sqlalchemy-dlock on psycopg 3; it uses advisory locks on one connection."""

    name = "sqlalchemy-dlock"

    def __init__(self, directory: Path) -> None:
        from sqlalchemy_dlock.factory import create_sadlock

        self._engine = _engine(directory)
        self._connection = self._engine.connect()
        self._lock: Any = create_sadlock(self._connection, "sqlalchemy-dlock")

    def acquire(self) -> None:
        self._lock.acquire()

    def release(self) -> None:
        self._lock.release()

    def close(self) -> None:
        self._connection.close()
        self._engine.dispose()


KINDS: tuple[type[Contestant], ...] = (
    LockfastPostgres,
    Pals,
    SqlAlchemyDlock,
    AdvisoryLock,
    RowLock,
)


@dataclass(frozen=True)
class PostgresFigures:
    """All figures, by the contestant's name."""

    server: str
    uncontended: dict[str, Uncontended]
    statements_per_pair: float
    """Statements per pair of Lockfast, counted by the server."""
    one_per_s: float
    """Pairs per second of threads that share one lock, in one client."""
    many_per_s: float
    """The same with one lock per thread."""
    idle_ms: dict[str, Summary]
    contention: dict[str, Contention]
    order: dict[str, Order]


def run_postgresql(
    plan: Plan, without: Sequence[str], progress: Callable[[str], None]
) -> PostgresFigures:
    """Measure on a dedicated server, with its data on a disk."""
    kinds = [kind for kind in KINDS if kind.name not in without]
    with (
        PostgresServer("max_connections=200", durable=True) as server,
        ExitStack() as stack,
    ):
        directory = _prepare(server)
        progress("uncontended")
        every: list[type[Contestant]] = [PostgresFloor, *kinds]
        locks = [kind(directory) for kind in every]
        uncontended = measure_uncontended(
            locks, rounds=plan.rounds, pairs_per_round=plan.pairs_per_round // 5
        )
        for lock in locks:
            lock.close()
        progress("statements per pair")
        statements = count_statements(server)
        progress(f"{LOCKS} threads")
        one = _together(server, lambda i: "orders/42")
        many = _together(server, lambda i: f"orders/{i}")
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
            grants_per_process=plan.grants_per_process // 10,
        )
        progress("order of grants")
        order = measure_order(crews, rounds=max(1, plan.rounds // 2))
        ((version,),) = server.run("SELECT current_setting('server_version')")
    return PostgresFigures(
        version, uncontended, statements, one, many, idle_ms, contention, order
    )  # fmt: skip


def _prepare(server: PostgresServer) -> Path:
    (server.directory / "port").write_text(str(server.port))
    server.run("CREATE TABLE floor (name text PRIMARY KEY, token bigint)")
    server.run("CREATE TABLE job (id bigint PRIMARY KEY, state text) WITH (fillfactor = 50)")
    server.run("INSERT INTO job VALUES (42, 'todo')")
    return server.directory


def count_statements(server: PostgresServer, pairs: int = 50) -> float:
    """Return the statements that the server executes per acquire and release, by its log."""
    server.run("ALTER SYSTEM SET log_statement = 'all'")
    server.run("ALTER SYSTEM SET log_line_prefix = '[%a] '")
    # No listener: its separate connection might connect during the count.
    with lockfast.connect(server.url(listen="off"), ttl=600) as client:
        lock = client.lock("orders/42")
        lock.acquire().release()  # connects and opens the session
        server.run("SELECT pg_reload_conf()")
        server.wait_until("SELECT current_setting('log_statement') = 'all'")
        before = len(server.said)
        for _ in range(pairs):
            lock.acquire().release()
        server.run("SELECT 'the end of the pairs'")
        while "the end of the pairs" not in server.said[before:]:
            time.sleep(0.01)
        said = server.said[before:]
    server.run("ALTER SYSTEM RESET ALL")
    server.run("SELECT pg_reload_conf()")
    return len(re.findall(r"^\[lockfast\] .*(?:execute|statement)", said, re.MULTILINE)) / pairs


def _together(server: PostgresServer, name_of: Callable[[int], str], each: int = 8) -> float:
    """Return the pairs per second of many connected threads of one client."""
    with lockfast.connect(server.url(connections=str(LOCKS)), ttl=60) as client:
        ready = threading.Barrier(LOCKS + 1)

        def use(i: int) -> None:
            client.lock(f"warm/{i}").acquire().release()
            ready.wait()
            for _ in range(each):
                client.lock(name_of(i)).acquire().release()

        threads = [threading.Thread(target=use, args=(i,)) for i in range(LOCKS)]
        for thread in threads:
            thread.start()
        ready.wait()
        began_s = time.perf_counter()
        for thread in threads:
            thread.join()
        return LOCKS * each / (time.perf_counter() - began_s)


def targets_postgresql(figures: PostgresFigures) -> list[Target]:
    """Return the targets that this run can judge."""
    return list(_judged(figures))


def _judged(figures: PostgresFigures) -> Iterator[Target]:
    name = LockfastPostgres.name
    if name in figures.uncontended:
        ratio = figures.uncontended[name].times(figures.uncontended[PostgresFloor.name])
        text = f"uncontended at most {FLOOR_TIMES_MAX:g} × the floor"
        yield Target(text, f"{ratio:.2f} ×", ratio <= FLOOR_TIMES_MAX)
        each = figures.statements_per_pair
        yield Target("one statement to acquire, one to release", f"{each:g} per pair", each == 2)
    ratio = figures.many_per_s / figures.one_per_s
    text = f"{LOCKS} locks at least {PARALLEL_TIMES_MIN:g} × the rate of one"
    yield Target(text, f"{ratio:.1f} ×", ratio >= PARALLEL_TIMES_MIN)
    if {name, Pals.name} <= figures.idle_ms.keys():
        ours, theirs = figures.idle_ms[name].median, figures.idle_ms[Pals.name].median
        text = f"idle hand-over quicker than {Pals.name}"
        yield Target(text, f"{theirs / ours:.2f} ×", ours < theirs)
    if name in figures.order:
        order = figures.order[name]
        found = f"{order.to_longest_waiter} of {order.grants}"
        met = order.to_longest_waiter == order.grants
        yield Target("every grant goes to the longest waiter", found, met)


def report_postgresql(figures: PostgresFigures) -> str:
    floor = median(figures.uncontended[PostgresFloor.name].round_medians_us)
    pairs = [
        (name, f"{found.pair_us.median:.0f}", f"{found.pair_us.p99:.0f}",
         f"{median(found.round_medians_us) / floor:.2f}")
        for name, found in figures.uncontended.items()
    ]  # fmt: skip
    judged = targets_postgresql(figures)
    parts = [
        table(
            f"Uncontended acquire + release, PostgreSQL {figures.server} (floor: two upserts)",
            ("", "median µs", "p99 µs", "× floor"),
            pairs,
        ),
        table(
            f"{LOCKS} threads of one client",
            ("", "pairs/s"),
            [
                ("one lock", f"{figures.one_per_s:.0f}"),
                ("a lock each", f"{figures.many_per_s:.0f}"),
            ],
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
            ("", "grants/s", "Jain", "most passed over", "overlaps"),
            [
                (name, f"{found.grants_per_s:,.0f}", f"{found.fairness:.3f}",
                 str(found.most_passed), str(found.overlaps))
                for name, found in figures.contention.items()
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
            [(one.text, one.measured, "met" if one.met else "missed") for one in judged],
        ),
    ]  # fmt: skip
    return "\n\n".join(parts)
