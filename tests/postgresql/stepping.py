"""The store behind `apply`, with a clock that the test sets."""

from __future__ import annotations

import json
from collections.abc import Sequence
from time import monotonic
from typing import Any, cast

from lockfast.core import commands as c
from lockfast.core import rows as r
from lockfast.core.commands import READS
from lockfast.core.memory_rows import MemoryRows
from lockfast.core.table import Table
from lockfast.sim.network import Network
from lockfast.sim.postgresql.server import Answer, Backend
from lockfast.sim.postgresql.server import PostgresServer as Model
from lockfast.sim.runtime import MS, Host, Kernel
from lockfast.stores.postgresql.address import Address, parse
from lockfast.stores.postgresql.connection import Connection, Parameter, Result, Statement
from lockfast.stores.postgresql.packing import unpack_claim, unpack_resource, unpack_session
from lockfast.stores.postgresql.steps import Clock, Steps
from lockfast.stores.postgresql.wire import Server
from lockfast.stores.registry import parse_url

PATIENCE_S = 60.0

_EVERYTHING = (
    "SELECT 's', lockfast.session_row(s)::text FROM lockfast.sessions s WHERE namespace = $1"
    " UNION ALL SELECT 'c', lockfast.claim_row(c)::text FROM lockfast.claims c"
    "  WHERE namespace = $1"
    " UNION ALL SELECT 'r', lockfast.resource_row(r)::text FROM lockfast.resources r"
    "  WHERE namespace = $1"
    " UNION ALL SELECT 'l', json_build_array(line, kind, name, rank, session, n)::text"
    "  FROM lockfast.lines WHERE namespace = $1"
    " UNION ALL SELECT 'm', json_build_array(position, watchers)::text FROM lockfast.logs"
    "  WHERE namespace = $1"
    " UNION ALL SELECT 'e', event FROM (SELECT event FROM lockfast.events"
    "  WHERE namespace = $1 ORDER BY position) e"
)


class ReapingTable(Table):
    """The reference, which ends what is due in a separate step before the command's.

    The store does the same, because ending sessions takes other locks than the command. The
    difference from a single step is visible in a semaphore that is empty in between and forgets its
    limit.
    """

    def apply(self, command: c.Command, now_ms: int, wall_us: int) -> tuple[c.Reply, list[c.Wake]]:
        wakes: list[c.Wake] = []
        meta = self.rows.get(r.META_KEY)
        if type(command) not in READS and meta is not None and meta.due_ms <= now_ms:
            _, wakes = super().apply(c.Expel("", "nobody"), now_ms, wall_us)
        reply, more = super().apply(command, now_ms, wall_us)
        return reply, list(dict.fromkeys([*wakes, *more]))


def reference() -> ReapingTable:
    return ReapingTable(MemoryRows())


class StoreSteps:
    """Executes one command after the other in its own namespace.

    With `by_rows` all rows are fetched after a step, and read-only commands are executed on these:
    thousands of steps can be compared in a short time.
    """

    def __init__(
        self, url: str, *, watched: bool = True, by_rows: bool = False, shortcuts: bool = True
    ) -> None:
        self.server = Server(parse(parse_url(url)))
        self.connection = self._connect()
        self.shortcuts_taken = 0
        self._by_rows = by_rows
        self._shortcuts = shortcuts
        self._namespace = self.server.address.namespace
        self._raised_us = 0
        self._places: dict[tuple[str, int], tuple[c.Place, ...]] = {}
        self._table: Table | None = None
        if watched:
            # Keep the log from the beginning, so that it can be compared too.
            self._begin_log()

    def _connect(self) -> Connection:
        return self.server.connect(monotonic() + PATIENCE_S)

    def _begin_log(self) -> None:
        self._run("INSERT INTO lockfast.logs VALUES ($1, 0, $2, 0)", 1 << 62)

    def _run(self, sql: str, *values: int) -> Result:
        return self.connection.run(sql, self._namespace, *values, until_s=monotonic() + PATIENCE_S)

    def apply(self, command: c.Command, now_ms: int, wall_us: int) -> tuple[c.Reply, list[c.Wake]]:
        if type(command) in READS and self._by_rows:
            if self._table is None:
                self._table = Table(self.everything())
            return self._table.apply(command, now_ms, wall_us)
        self._table = None
        clock = Clock(now_ms, wall_us)
        if isinstance(command, c.Enter):
            self._places.setdefault(command[:2], command.places)
        elif isinstance(command, c.Leave):
            command = command._replace(places=self._places.get(command[:2], ()))
        if wall_us > self._raised_us:
            # The reference's tokens follow the clock; the store's do when the epoch is raised.
            self._raised_us = wall_us + 60_000_000
            ahead = Clock(now_ms, self._raised_us)
            Steps(self.connection, monotonic() + PATIENCE_S, clock=ahead).raise_epoch()
        return self._step(command, clock)

    def _step(self, command: c.Command, clock: Clock) -> tuple[c.Reply, list[c.Wake]]:
        wakes: list[c.Wake] = []
        until_s = monotonic() + PATIENCE_S
        if not self._shortcuts:
            steps = Steps(self.connection, until_s, self.server.channel, clock)
            return steps.apply(command), steps.wakes
        before = self.connection.exchanges
        reply = self.server.apply(self.connection, command, until_s, wakes, clock)
        self.shortcuts_taken += self.connection.exchanges == before + 1
        return reply, wakes

    def dump(self) -> list[tuple[str, list[object]]]:
        """Return every row of the namespace, by kind of row."""
        return [(str(kind), json.loads(text or "")) for kind, text in self._run(_EVERYTHING)]

    def everything(self) -> MemoryRows:
        """Return the rows in the reference's format."""
        rows = MemoryRows()
        meta = r.Meta()
        accounts: dict[str, int] = {}
        for kind, values in self.dump():
            found: list[object] = values
            if kind == "s":
                session = unpack_session(found)
                rows.put(r.session_key(session.id), session)
            elif kind == "c":
                claim = unpack_claim(found)
                if claim is not None:
                    rows.put(r.claim_key(claim.session, claim.n), claim)
                    if claim.state != c.REVOKED:
                        accounts[claim.session] = accounts.get(claim.session, 0) + 1
            elif kind == "r":
                resource = unpack_resource(found)
                rows.put(r.resource_key(resource.kind, resource.name), resource)
            elif kind == "l":
                line, of_kind, name, rank, owner, n = map(str, found)
                rows.put(r.line_prefix(line, of_kind, name) + rank, r.claim_ref(owner, int(n)))
            elif kind == "m":
                meta.position, meta.watchers = (int(str(value)) for value in found)
            else:
                rows.append(c.Event(*found))  # type: ignore[arg-type]
        for id, count in accounts.items():
            rows.get(r.session_key(id)).claims = count
        rows.put(r.META_KEY, meta)
        return rows

    def close(self) -> None:
        self.connection.close()


def new_model() -> Model:
    kernel = Kernel()
    return Model(Host(kernel, "store"), Network(kernel))


def ask_model(model: Model, backend: Backend, statements: Sequence[Statement]) -> Answer:
    """Send a request and advance time until it is answered."""
    answers: list[Answer] = []
    backend.begin(statements, answers.append)
    kernel = model.network.kernel
    kernel.run(until=kernel.now + 20 * MS)
    assert answers, f"blocked: {statements}"
    return answers[0]


class ModelSteps(StoreSteps):
    """The store on the simulator's PostgreSQL, which answers immediately."""

    def __init__(self) -> None:
        self._model = new_model()
        super().__init__("postgresql://model/locks")

    def _connect(self) -> Connection:
        connection: Any = ModelConnection(self._model, self.server.address)
        return cast(Connection, connection)

    def _begin_log(self) -> None:
        row = {"position": 0, "until_ms": 1 << 62, "watchers": 0}
        logs = self._model.database.tables["logs"]
        logs[(self._namespace,)] = {"namespace": self._namespace, **row}


class ModelConnection:
    """The only connection to a model."""

    def __init__(self, model: Model, address: Address) -> None:
        self.address = address
        self.exchanges = 0
        self._model = model
        self._backend = model.connect(lambda payload: None, lambda: None)

    def exchange(self, statements: Sequence[Statement], until_s: float) -> list[Result]:
        self.exchanges += 1
        answer = ask_model(self._model, self._backend, statements)
        assert answer.error is None, (answer.error, statements)
        return list(answer.results)

    def run(self, sql: str, *values: Parameter, until_s: float) -> Result:
        return self.exchange([(sql, values)], until_s)[0]

    def close(self) -> None: ...
