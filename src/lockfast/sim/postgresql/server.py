"""A PostgreSQL server on a host: backends that execute flights, notifications, and faults.

A flight is executed statement by statement. Between two statements, and while a flight waits for a
lock or for the disk, other backends run, and its own backend can be terminated.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Generator, Sequence
from functools import partial
from typing import Any, Final, NamedTuple, TypeAlias

from lockfast.sim.network import Network
from lockfast.sim.postgresql.database import Database, SqlError, Transaction, Yields
from lockfast.sim.postgresql.functions import Call
from lockfast.sim.postgresql.locks import Locks, Request
from lockfast.sim.postgresql.statements import as_result, prepare
from lockfast.sim.runtime import MS, Host
from lockfast.stores.postgresql.connection import (
    BEGIN,
    CLIENT_CHECK_MS,
    COMMIT,
    LOCK_TIMEOUT_MS,
    ROLLBACK,
    Result,
    Statement,
)
from lockfast.stores.postgresql.steps import BEGIN_READING

DEADLOCK_MS: Final = 1000
"""A transaction that has waited this long for a lock checks for a deadlock."""
PREEMPTED: Final = 0.01
"""The probability that a backend is preempted between two statements."""
PREEMPTED_US: Final = 4 * MS
"""The longest preemption."""
FLUSH_US: Final = (50, 900)
"""The shortest and longest time to flush the log to disk."""


class Answer(NamedTuple):
    """What a client receives for a flight."""

    results: list[Result]
    """The results of the statements that were executed."""
    error: SqlError | None = None
    """The error of the next statement."""


Tell: TypeAlias = Callable[[Answer], None]
_FLUSH: Final = Request("the disk")


class Backend:
    """One connection's process on the server, with at most one transaction."""

    def __init__(
        self, server: PostgresServer, hear: Callable[[str], None], broken: Callable[[], None]
    ) -> None:
        self._server = server
        self._hear = hear
        self._broken = broken
        self.channel = ""
        """The channel it listens on."""
        self.tx: Transaction | None = None
        self.ended = False
        self._is_explicit = False
        self._reads_only = False
        self._run: Generator[Yields, Any, None] | None = None
        self._results: list[Result] = []
        self._tell: Tell | None = None
        self._commits = False
        """A commit is in progress, during which the backend cannot be terminated."""
        self._is_doomed = False
        self._client_is_gone = False
        self._waits = 0
        """Counts waits, so that a late event of one wait cannot end another."""

    # ── flights ──────────────────────────────────────────────────────────────────────

    @property
    def is_idle(self) -> bool:
        return self._run is None

    def begin(self, statements: Sequence[Statement], tell: Tell) -> None:
        """Start a flight; `tell` receives its answer."""
        assert self._run is None, "a connection has one flight at a time"
        self._tell = tell
        self._results = []
        self._run = self._flight(statements)
        self._waits += 1
        self._go_on(self._waits, None)

    def _flight(self, statements: Sequence[Statement]) -> Generator[Yields, Any, None]:
        for statement in statements:
            found = yield from self._statement(statement)
            self._results.append(found)
            if self._is_doomed:
                raise _terminated()
        if not self._is_explicit and self.tx is not None:
            yield from self._commit()

    def _statement(self, statement: Statement) -> Generator[Yields, Any, Result]:
        sql, values = statement
        if statement in (BEGIN, BEGIN_READING):
            self._is_explicit, self._reads_only = True, statement == BEGIN_READING
            return []
        if statement == COMMIT:
            yield from self._commit()
            return []
        if statement == ROLLBACK:
            self.roll_back()
            return []
        if sql.startswith("LISTEN "):
            self.channel = sql.removeprefix("LISTEN ").strip('"')
            return []
        if self.tx is None:
            self.tx = Transaction(self._server.database, is_frozen=self._reads_only)
        call = Call(self.tx, self._server.host.clock.wall_us)
        return as_result((yield from prepare(sql)(call, values)))

    def _commit(self) -> Generator[Yields, Any, None]:
        tx = self.tx
        if tx is not None and (tx.changes or tx.has_drawn):
            self._commits = True
            if tx.is_durable:
                yield _FLUSH
            self._server.database.commit(tx.changes, tx.is_durable)
            self._commits = False
        notices = list(tx.notices) if tx is not None else []
        self.roll_back()
        self._server.notify(notices)

    def roll_back(self) -> None:
        """End the transaction and release its locks; discard what is not committed."""
        tx, self.tx = self.tx, None
        self._is_explicit = self._reads_only = False
        if tx is not None:
            self._server.locks.release(tx)

    # ── going on ─────────────────────────────────────────────────────────────────────

    def _go_on(self, wait: int, sent: object) -> None:
        """Run until the flight ends or waits; do nothing if `wait` has already ended."""
        if wait != self._waits or self._run is None:
            return
        server = self._server
        try:
            while True:
                asked = self._run.send(sent)
                sent = None
                if asked is None:
                    pause_us = server.preempted_us()
                    if pause_us:
                        self._go_on_after(pause_us)
                        return
                elif asked is _FLUSH:
                    self._go_on_after(server.flush_us())
                    return
                else:
                    assert self.tx is not None
                    sent = server.locks.take(self.tx, asked)
                    if not sent and not asked.is_try:
                        self._wait_for(asked)
                        return
        except StopIteration:
            self._end_flight(None)
        except SqlError as error:
            self._end_flight(error)

    def _go_on_after(self, us: int) -> None:
        self._waits += 1
        self._server.network.kernel.after(us, partial(self._go_on, self._waits, None))

    def _wait_for(self, request: Request) -> None:
        self._waits += 1
        wait, kernel = self._waits, self._server.network.kernel
        assert self.tx is not None

        def granted() -> None:
            kernel.soon(lambda: self._go_on(wait, True))

        self._server.locks.wait(self.tx, request, granted)
        clock = self._server.host.clock
        for ms, look in (
            (DEADLOCK_MS, self._look_for_deadlock),
            (CLIENT_CHECK_MS, self._look_for_client),
            (2 * CLIENT_CHECK_MS, self._look_for_client),
            (LOCK_TIMEOUT_MS, self._time_out),
        ):
            kernel.after(clock.ticks_for(ms * MS), partial(self._look, wait, look))

    def _look(self, wait: int, look: Callable[[], None]) -> None:
        if wait == self._waits and self._run is not None:
            look()

    def _look_for_deadlock(self) -> None:
        if self._server.locks.is_deadlocked(self.tx):
            self._fail(SqlError("40P01", "deadlock detected"))

    def _look_for_client(self) -> None:
        if self._client_is_gone:
            self._fail(SqlError("57P01", "the client is gone"))

    def _time_out(self) -> None:
        self._fail(SqlError("55P03", "canceling statement due to lock timeout"))

    def _fail(self, error: SqlError) -> None:
        assert self._run is not None
        self._run.close()
        self._end_flight(error)

    def _end_flight(self, error: SqlError | None) -> None:
        self._run = None
        self._waits += 1
        if error is not None:
            self.roll_back()
        tell, self._tell = self._tell, None
        if tell is not None and not self._client_is_gone:
            tell(Answer(self._results, error))
        if self._client_is_gone or self._is_doomed:
            self.end()
        elif self.tx is not None and self.tx.idle_s is not None:
            clock = self._server.host.clock
            idle_us = clock.ticks_for(self.tx.idle_s * 1000 * MS)
            self._server.network.kernel.after(idle_us, partial(self._end_idle, self._waits))

    def _end_idle(self, wait: int) -> None:
        if wait == self._waits and not self.ended:
            self.end()

    # ── its end ──────────────────────────────────────────────────────────────────────

    def hang_up(self) -> None:
        """Note that the client has closed the connection; a busy backend notices later."""
        self._client_is_gone = True
        if self.is_idle:
            self.end()

    def terminate(self) -> None:
        """Terminate, as by pg_terminate_backend; a commit in progress is completed first."""
        if self._commits:
            self._is_doomed = True
        elif self._run is not None:
            self._is_doomed = True
            self._fail(_terminated())
        else:
            self.end()

    def crash(self) -> None:
        """End with the server. A commit in progress may or may not have reached the disk."""
        if self._commits and self.tx is not None and self._server.random.random() < 0.5:
            self._server.database.commit(self.tx.changes, is_durable=True)
        self._tell = None
        if self._run is not None:
            self._run.close()
            self._run = None
        self.end()

    def end(self) -> None:
        if not self.ended:
            self.ended = True
            self._waits += 1
            self.roll_back()
            self._server.backends.pop(self, None)
            self._broken()

    def hear(self, payload: str) -> None:
        self._hear(payload)


def _terminated() -> SqlError:
    return SqlError("57P01", "terminating connection due to administrator command")


class PostgresServer:
    """One server. It answers nothing while it is down."""

    def __init__(self, host: Host, network: Network, database: Database | None = None) -> None:
        self.host = host
        self.network = network
        self.random = random.Random(f"{network.kernel.seed} {host.name} backends")
        self.database = database or Database(host.clock.wall_us())
        self.locks = Locks()
        self.backends: dict[Backend, None] = {}
        self.down = False
        self.slow_us = 0
        self._standby = self.database.copy()

    def connect(self, hear: Callable[[str], None], broken: Callable[[], None]) -> Backend:
        backend = Backend(self, hear, broken)
        self.backends[backend] = None
        return backend

    def notify(self, notices: Sequence[tuple[str, str]]) -> None:
        for channel, payload in notices:
            for backend in list(self.backends):
                if backend.channel == channel:
                    backend.hear(payload)

    def preempted_us(self) -> int:
        if self.random.random() >= PREEMPTED:
            return 0
        return 1 + int(self.random.random() * PREEMPTED_US)

    def flush_us(self) -> int:
        least, most = FLUSH_US
        return least + int(self.random.random() * (most - least)) + self.slow_us

    # ── what happens to it ───────────────────────────────────────────────────────────

    def crash(self) -> None:
        """Crash: break all connections, and perhaps lose commits that are not on disk."""
        if self.down:
            return
        self.down = True
        for backend in list(self.backends):
            backend.crash()
        self.locks = Locks()
        self.database.recover(self.random.randrange(self.database.volatile + 1))

    def start(self) -> None:
        self.down = False

    def sync(self) -> None:
        """Replicate everything so far to the standby, or to the archive."""
        self._standby = self.database.copy()

    def forget_unsynced(self) -> None:
        """Crash and restore the archive, which starts a new timeline."""
        self.crash()
        self.database = self._standby.promoted()

    def forget_all(self) -> None:
        raise AssertionError("a server without the schema is misconfigured until it is created")

    def promote(self, host: Host) -> PostgresServer:
        """Crash this server and return its standby, promoted with what it has received."""
        self.crash()
        return PostgresServer(host, self.network, self._standby.promoted())
