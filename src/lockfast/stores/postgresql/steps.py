"""The general path: one command as one transaction that runs `core.table` over rows.

The first flight takes the locks that the command is known to need and loads the rows under them. If
the table touches more (for example the other places of a claim that is now granted), the step tries
to lock these as well and runs again. It does not wait for a lock that is taken at that moment,
since that may violate the lock order: it rolls back the transaction and starts again with all of
them. The last flight writes the changes, notifies other clients, and commits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, NamedTuple

from lockfast.core import commands as c
from lockfast.core import rows as r
from lockfast.core.commands import READS, Place, Reply, Wake
from lockfast.core.lines import FAR_MS
from lockfast.core.rows import LOG_KEPT_MS, Meta
from lockfast.core.table import Table
from lockfast.errors import OutcomeUnknownError, StoreUnavailableError
from lockfast.stores.postgresql.connection import (
    BEGIN,
    COMMIT,
    ROLLBACK,
    Connection,
    Parameter,
    Result,
    Statement,
    as_json,
)
from lockfast.stores.postgresql.rows import Locked, NeedLocks, Resource, StepRows
from lockfast.stores.postgresql.schema import in_schema

MOVES_MAX: Final = 256
"""The most claims that one step grants; further steps grant the rest."""
REAPED_MAX: Final = 64
TRIES_MAX: Final = 100
TOKEN_BEHIND_US: Final = 1_000_000
"""Opening a session raises tokens that lag further than this behind the server's wall clock."""
BEGIN_READING: Final[Statement] = ("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY", ())

_BEGIN_STEP: Final = "SELECT * FROM lockfast.begin_step($1, $2, $3, $4, $5, $6, $7, $8)"
_LOAD: Final = "SELECT * FROM lockfast.load($1, $2, $3, $4, true, $5)"


class Clock(NamedTuple):
    """A test's replacement for the server's clock."""

    now_ms: int
    wall_us: int


class Outcome(NamedTuple):
    reply: Reply
    wakes: Sequence[Wake] = ()
    """For sessions of any client; to be delivered after the commit."""


class _StaleEpoch(Exception):
    """Tokens may lag behind those of another server with the same data: raise the epoch."""


class _Due(Exception):
    """Something is due: reap first."""


class _Incomplete(Exception):
    """A read needs more than its first flight returned."""


class StepTable(Table):
    """The lock table, with tokens and arrival numbers from sequences."""

    rows: StepRows
    has_wall_clock = True

    def __init__(self, rows: StepRows) -> None:
        super().__init__(rows)
        self.moves_left = MOVES_MAX

    def begin(self, now_ms: int, wall_us: int) -> None:
        super().begin(now_ms, wall_us)
        self.meta = self.rows.meta

    def next_token(self, block: int = 1) -> int:
        return self.rows.next_token(block)

    def settle_alone(self, places: Iterable[Place], now_ms: int, wall_us: int) -> None:
        """Run a step that only grants."""
        self.begin(now_ms, wall_us)
        self.settle(places)
        self.flush()


Action = Callable[[StepTable, int, int], tuple[Reply, list[Wake]]]


class _Needs:
    """The locks that a step is known to need; they only grow."""

    def __init__(self, alone: bool) -> None:
        self.alone = alone
        self.shared: set[str] = set()
        self.exclusive: set[str] = set()
        self.resources: set[Resource] = set()
        self.claims: set[tuple[str, int]] = set()

    def add(self, needs: NeedLocks) -> None:
        self.alone |= needs.alone
        self.exclusive |= needs.exclusive
        self.shared -= needs.exclusive
        self.resources |= needs.resources

    def parameters(self, namespace: str, is_try: bool, now_ms: int | None) -> list[Parameter]:
        return [
            namespace, self.alone, as_json(sorted(self.shared)), as_json(sorted(self.exclusive)),
            as_json(sorted(self.resources)), as_json(sorted(self.claims)), is_try, now_ms,
        ]  # fmt: skip

    def locked(self) -> Locked:
        return Locked(frozenset(self.resources), frozenset(self.exclusive), self.alone)


class Steps:
    """Commands on one connection."""

    def __init__(
        self,
        connection: Connection,
        until_s: float,
        own_channel: str = "",
        clock: Clock | None = None,
    ) -> None:
        self._connection = connection
        self._namespace = connection.address.namespace
        self._schema = connection.address.schema
        self._until_s = until_s
        self._own_channel = own_channel
        self._clock = clock
        self._now_ms = clock.now_ms if clock is not None else None
        self._may_reap = True
        self._unsettled: list[Place] = []
        self.wakes: list[Wake] = []
        """The wakes of everything done so far, including before the command itself."""

    def apply(self, command: c.Command) -> Reply:
        """Execute one command; the caller delivers `wakes` afterwards."""
        if type(command) in READS:
            return self._read(command)
        needs = _Needs(alone=isinstance(command, c.Watch))
        _foresee(command, needs)

        def action(table: StepTable, now_ms: int, wall_us: int) -> tuple[Reply, list[Wake]]:
            return table.apply(command, now_ms, wall_us)

        reply = self._step(needs, action, command)
        while self._unsettled:
            self._settle(self._unsettled.pop())
        return reply

    # ── writing ──────────────────────────────────────────────────────────────────────

    def _step(
        self,
        needs: _Needs,
        action: Action,
        command: c.Command | None = None,
        due: Sequence[str] = (),
        opening: Sequence[Statement] = (BEGIN,),
    ) -> Reply:
        is_try = False
        for _ in range(TRIES_MAX):
            try:
                rows = self._begin(needs, command, is_try, opening)
                if rows is None:  # a lock is taken: wait for all of them, in order
                    self._rollback()
                    is_try, opening = False, (BEGIN,)
                    continue
                return self._run(rows, action, due)
            except NeedLocks as more:
                needs.add(more)
                is_try, opening = True, ()
            except _StaleEpoch:
                self._rollback()
                self.raise_epoch()
                is_try, opening = False, (BEGIN,)
            except _Due:
                self._rollback()
                self._may_reap = False
                self._reap()
                is_try, opening = False, (BEGIN,)
        self._rollback()
        raise StoreUnavailableError(
            self._connection.address.label,
            f"gave up after {TRIES_MAX} attempts to lock everything a step touches",
            "try again",
        )

    def _begin(
        self,
        needs: _Needs,
        command: c.Command | None,
        is_try: bool,
        opening: Sequence[Statement],
    ) -> StepRows | None:
        parameters = needs.parameters(self._namespace, is_try, self._now_ms)
        flight = [*opening, (self._sql(_BEGIN_STEP), parameters)]
        found = self._ask(flight)[-1]
        keys = {key for key, _ in found[:1]}
        if "taken" in keys:
            return None
        if "stale" in keys:
            raise _StaleEpoch
        rows = StepRows(self._query, self._namespace, needs.locked(), command)
        rows.load(found, needs.shared | needs.exclusive, needs.resources, needs.claims)
        if rows.logs and not needs.alone:
            raise NeedLocks(alone=True)
        if rows.is_due and self._may_reap:
            raise _Due
        opens = isinstance(command, c.Open) or (
            isinstance(command, c.Enter) and command.open is not None
        )
        if opens and self._clock is None and rows.is_behind(TOKEN_BEHIND_US):
            raise _StaleEpoch
        return rows

    def _run(self, rows: StepRows, action: Action, due: Sequence[str]) -> Reply:
        now_ms = rows.now_ms
        wall_us = self._clock.wall_us if self._clock is not None else rows.wall_us
        rows.meta.due_ms = now_ms if due else FAR_MS
        rows.meta.watchers = rows.log.watchers
        rows.due = list(due)
        table = StepTable(rows)
        reply, wakes = action(table, now_ms, wall_us)
        statements = [(self._sql(sql), values) for sql, values in rows.statements()]
        statements += notifications(wakes, self._own_channel)
        self._connection.exchange([*statements, COMMIT], self._until_s)
        self.wakes = list(dict.fromkeys([*self.wakes, *wakes]))
        self._unsettled += [Place(row.kind, row.name, "") for row in table.unsettled]
        return reply

    def _settle(self, place: Place) -> None:
        """Grant what a bounded step has left; if this fails, a waiter's keep-alive does it."""
        needs = _Needs(alone=False)
        needs.resources.add(place[:2])

        def action(table: StepTable, now_ms: int, wall_us: int) -> tuple[Reply, list[Wake]]:
            table.settle_alone([place], now_ms, wall_us)
            return c.Done(), table.wakes

        self._step(needs, action)

    def _reap(self) -> None:
        """End what is due, unless another client is doing it."""
        found = self._ask(
            [
                BEGIN,
                (self._sql(_TRY_TO_REAP), [self._namespace]),
                (self._sql(_DUE), [self._namespace, self._now_ms, REAPED_MAX]),
            ]
        )
        if found[1] != [("t",)] or not found[2]:
            self._rollback()
            return
        needs = _Needs(alone=False)
        due = []
        for session, n, kind, name in found[2]:
            if not session:
                needs.resources.add((str(kind), str(name)))
                due.append(r.opening_key(0, str(kind), str(name)))
            else:
                due.append(r.due_key(0, session, int(n or 0)))
                if n == "0":
                    needs.exclusive.add(session)
                else:
                    needs.claims.add((session, int(n or 0)))
        nobody = c.Expel("", "nobody")

        def action(table: StepTable, now_ms: int, wall_us: int) -> tuple[Reply, list[Wake]]:
            return table.apply(nobody, now_ms, wall_us)

        self._step(needs, action, nobody, due, opening=())

    def raise_epoch(self) -> None:
        """Raise tokens above the wall clock, in a separate transaction."""
        wall_us = self._clock.wall_us if self._clock is not None else None
        self._ask([(self._sql("SELECT lockfast.raise_epoch($1)"), [wall_us])])

    # ── reading ──────────────────────────────────────────────────────────────────────

    def _read(self, command: c.Command) -> Reply:
        """Read from one snapshot; looking at a claim or lock usually takes one flight."""
        needs = _Needs(alone=False)
        _foresee(command, needs)
        flight = [BEGIN_READING, self._loading(needs)]
        if isinstance(command, c.Look | c.Inspect):
            found = self._ask([*flight, COMMIT])[1]
            try:
                return self._look(command, self._loaded(needs, found, self._refuse_query))
            except _Incomplete:
                pass
        rows = self._loaded(needs, self._ask(flight)[1], self._query)
        if isinstance(command, c.Events) and rows.log.until_ms - rows.now_ms < LOG_KEPT_MS // 2:
            # Enable the log from now on: a client that reads it once may read it again.
            keep: Statement = (
                self._sql("SELECT lockfast.keep_log($1, $2, $3)"),
                [self._namespace, LOG_KEPT_MS, self._now_ms],
            )
            found = self._ask([COMMIT, BEGIN, keep, COMMIT, *flight])[-1]
            rows = self._loaded(needs, found, self._query)
        reply = self._look(command, rows)
        self._ask([COMMIT])
        return reply

    def _loading(self, needs: _Needs) -> Statement:
        sessions = as_json(sorted(needs.shared | needs.exclusive))
        resources, claims = as_json(sorted(needs.resources)), as_json(sorted(needs.claims))
        return self._sql(_LOAD), [self._namespace, sessions, resources, claims, self._now_ms]

    def _loaded(self, needs: _Needs, found: Result, query: Callable[..., Result]) -> StepRows:
        rows = StepRows(query, self._namespace, Locked(None))
        rows.load(found, needs.shared | needs.exclusive, needs.resources, needs.claims)
        for claim in needs.claims:
            rows.note_loaded(rows.places_of(*claim))
        rows.meta = Meta(0, rows.log.position, FAR_MS, rows.log.watchers)
        return rows

    def _look(self, command: c.Command, rows: StepRows) -> Reply:
        return StepTable(rows).apply(command, rows.now_ms, rows.wall_us)[0]

    # ── asking ───────────────────────────────────────────────────────────────────────

    def _ask(self, flight: Sequence[Statement]) -> list[Result]:
        """Send statements other than the step's commit: without an answer, the step did nothing."""
        try:
            return self._connection.exchange(flight, self._until_s)
        except OutcomeUnknownError as error:
            raise StoreUnavailableError(error.store, error.what, error.advice) from error

    def _query(self, sql: str, *values: Parameter) -> Result:
        return self._ask([(self._sql(sql), values)])[0]

    def _refuse_query(self, sql: str, *values: Parameter) -> Result:
        raise _Incomplete

    def _rollback(self) -> None:
        self._ask([ROLLBACK])

    def _sql(self, text: str) -> str:
        return in_schema(text, self._schema)


_TRY_TO_REAP: Final = "SELECT pg_try_advisory_xact_lock(lockfast.reaper_key($1))"
_DUE: Final = "SELECT * FROM lockfast.due($1, $2, $3)"


def _foresee(command: c.Command, needs: _Needs) -> None:
    """Record what a command needs according to its own fields."""
    session: Any = getattr(command, "session", None)
    if session is not None:
        ends_or_opens = isinstance(
            command, c.Open | c.Close | c.Expel | c.RevokeSession | c.Watch
        ) or (isinstance(command, c.Enter) and command.open is not None)
        (needs.exclusive if ends_or_opens else needs.shared).add(session)
        n: Any = getattr(command, "n", None)
        if n is not None:
            needs.claims.add((session, n))
    if isinstance(command, c.Enter | c.Leave):
        needs.resources.update(place[:2] for place in command.places)
    elif isinstance(command, c.Resize | c.Inspect):
        needs.resources.add((command.kind, command.name))
    elif isinstance(command, c.Break):
        needs.claims.update(witness[:2] for witness in command.witnesses)
        if command.ahead_of is not None:
            needs.claims.add(command.ahead_of)
    elif isinstance(command, c.Renew):
        needs.claims.update((command.session, n) for n in command.waiting)


def notifications(wakes: Iterable[Wake], own_channel: str) -> list[Statement]:
    """Return the statements that wake other clients; an inbox is a channel and a secret."""
    found: dict[tuple[str, str], None] = {}
    for inbox, session, n, what, token in wakes:
        channel, _, secret = inbox.partition(" ")
        if channel and channel != own_channel:
            found[channel, f"{secret} {session} {n} {what} {token}"] = None
    return [("SELECT pg_notify($1, $2)", pair) for pair in found]
