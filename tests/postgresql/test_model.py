"""The simulator's PostgreSQL answers as a real server does.

Every request that the store sends goes to both, and rows and tables are compared; interactions
between several connections are run on both and compared too.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from time import monotonic, sleep
from typing import Any

import pytest

from lockfast.conformance.commands import PROFILES, Commands, Profile
from lockfast.core import commands as c
from lockfast.core.commands import READS
from lockfast.errors import StoreError
from lockfast.sim.postgresql import functions as f
from lockfast.sim.postgresql.database import Sequence as ModelSequence
from lockfast.sim.postgresql.server import Answer
from lockfast.sim.postgresql.server import PostgresServer as Model
from lockfast.sim.promises import NOTHING, snapshot
from lockfast.sim.runtime import MS
from lockfast.stores.postgresql.address import parse
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
from lockfast.stores.registry import parse_url
from tests.postgresql.stepping import PATIENCE_S, StoreSteps, ask_model, new_model
from tests.postgresql.test_shortcuts import PLAIN
from tests.servers.postgresql import PostgresServer

STEPS = 120
SEEDS = range(1, 8)
BEGIN_STEP = "SELECT * FROM lockfast.begin_step($1, $2, $3, $4, $5, $6, $7, $8)"


def align(model: Model, connection: Connection, namespace: str) -> None:
    """Give the model the sequences and the epoch of the server."""

    def value(sql: str) -> Any:
        return connection.run(sql, until_s=monotonic() + PATIENCE_S)[0][0]

    for name in ("tokens", "arrivals"):
        sequence = ModelSequence()
        sequence.set(int(value(f"SELECT last_value FROM lockfast.{name}")))
        if value(f"SELECT is_called FROM lockfast.{name}") == "f":
            sequence.last = 0
        model.database.sequences[name] = sequence
    meta = dict(model.database.tables["meta"][(True,)])
    meta["epoch"] = int(value("SELECT epoch FROM lockfast.meta"))
    meta["timeline"] = model.database.timeline_text
    model.database.tables["meta"][(True,)] = meta


def comparable(sql: str, rows: Result) -> list[Any]:
    """Return rows without JSON formatting, the wall clock, and an order that was not requested."""
    found = [tuple(_plain(value) for value in row) for row in rows]
    found = [_without_wall_clock(row) for row in found]
    return found if "ORDER BY" in sql else sorted(found, key=repr)


def _plain(value: str | None) -> Any:
    return json.loads(value) if value is not None and value[:1] in "[{" and value else value


def _without_wall_clock(row: tuple[Any, ...]) -> tuple[Any, ...]:
    if row and row[0] == "clock":
        return ("clock", [row[1][0], None, *row[1][2:]])
    return row


class Both:
    """A connection to the server whose requests the model executes as well."""

    def __init__(self, real: Connection, model: Model, compared: Counter[str]) -> None:
        self.real = real
        self.model = model
        self.address = real.address
        self.exchanges = 0
        self._backend = model.connect(lambda payload: None, lambda: None)
        self._compared = compared

    def exchange(self, statements: Sequence[Statement], until_s: float) -> list[Result]:
        self.exchanges += 1
        expected = self.real.exchange(statements, until_s)
        answer = ask_model(self.model, self._backend, statements)
        assert answer.error is None, (answer.error, statements)
        for (sql, values), theirs, ours in zip(statements, expected, answer.results, strict=True):
            assert comparable(sql, ours) == comparable(sql, theirs), (sql, values)
            self._compared[sql.partition("(")[0]] += 1
        return expected

    def run(self, sql: str, *values: Parameter, until_s: float) -> Result:
        return self.exchange([(sql, values)], until_s)[0]

    def close(self) -> None:
        self.real.close()


def model_dump(model: Model, namespace: str) -> list[str]:
    tables = model.database.tables

    def rows(name: str) -> Iterator[dict[str, Any]]:
        return (row for row in tables[name].values() if row["namespace"] == namespace)

    found = [("s", json.loads(f.session_row(row))) for row in rows("sessions")]
    found += [("c", json.loads(f.claim_row(row))) for row in rows("claims")]
    found += [("r", json.loads(f.resource_row(row))) for row in rows("resources")]
    of_line = ("line", "kind", "name", "rank", "session", "n")
    found += [("l", [row[name] for name in of_line]) for row in rows("lines")]
    found += [("m", [row["position"], row["watchers"]]) for row in rows("logs")]
    found += [("e", json.loads(row["event"])) for row in rows("events")]
    return sorted(map(repr, found))


def play(server: PostgresServer, seed: int, profile: Profile, compared: Counter[str]) -> int:
    """Send random commands to both; return how many were compared."""
    watched = profile is not PLAIN and seed % 2 == 0
    # All but a few reads are executed on the rows, to save time.
    by_rows = seed % 7 > 0
    steps = StoreSteps(server.url(), watched=watched, by_rows=by_rows)
    model = new_model()
    namespace = steps.server.address.namespace
    real = steps.connection
    align(model, real, namespace)
    if watched:
        model.database.tables["logs"][(namespace,)] = {
            "namespace": namespace, "position": 0, "until_ms": 1 << 62, "watchers": 0,
        }  # fmt: skip
    both: Any = Both(real, model, compared)
    stream = Commands(seed, profile)
    seen = NOTHING
    kinds: dict[str, None] = {}
    for _ in range(STEPS):
        step = stream.next(seen)
        if isinstance(step.command, c.Enter):
            kinds.update(dict.fromkeys(place.kind for place in step.command.places))
        steps.connection = real if by_rows and type(step.command) in READS else both
        steps.apply(*step)
        steps.connection = real
        dumped = sorted(repr((kind, row)) for kind, row in steps.dump())
        assert model_dump(model, namespace) == dumped, step.command
        steps.connection = real if by_rows else both
        seen = snapshot(steps, *step[1:], seen, kinds)
    steps.close()
    return STEPS


@pytest.mark.timeout(600)
def test_every_statement_does_what_the_server_does(server: PostgresServer) -> None:
    """The same rows in every reply and the same tables after every command."""
    compared: Counter[str] = Counter()
    profiles = [PLAIN, *PROFILES.values()]
    for seed in SEEDS:
        play(server, seed, profiles[seed % len(profiles)], compared)
    assert compared.total() > 4000
    called = {name for name in f.FUNCTIONS if any(f"lockfast.{name}" in sql for sql in compared)}
    assert called == {*f.FUNCTIONS}


def _values(rng: random.Random, parts: str, most: int) -> list[str]:
    return sorted(rng.sample(parts, rng.randrange(most + 1)))


class Pair:
    """Several connections to the server and as many to the model."""

    def __init__(self, server: PostgresServer, count: int) -> None:
        address = parse(parse_url(server.url()))
        self.namespace = address.namespace
        self.real = [StoreSteps(server.url()).connection for _ in range(count)]
        self.model = new_model()
        align(self.model, self.real[0], self.namespace)
        self.backends = [
            self.model.connect(lambda payload: None, lambda: None) for _ in range(count)
        ]

    def ask(self, which: int, *statements: Statement) -> list[list[Any]]:
        theirs = self.real[which].exchange(statements, monotonic() + PATIENCE_S)
        answer = ask_model(self.model, self.backends[which], statements)
        assert answer.error is None
        results = zip(statements, theirs, answer.results, strict=True)
        both = [(comparable(sql, a), comparable(sql, b)) for (sql, _), a, b in results]
        for real, model in both:
            assert real == model, statements
        return [real for real, _ in both]

    def close(self) -> None:
        for connection in self.real:
            connection.close()


@pytest.fixture
def trio(server: PostgresServer) -> Iterator[Pair]:
    pair = Pair(server, 3)
    yield pair
    pair.close()


@pytest.mark.parametrize("seed", range(4))
def test_locks_and_visibility_between_connections(trio: Pair, seed: int) -> None:
    """Three transactions that try locks, write their own rows and read those of others."""
    rng = random.Random(f"locks {seed}")
    is_open = [False] * 3
    refused = 0
    for step in range(250):
        which = rng.randrange(3)
        act = rng.random()
        if not is_open[which]:
            trio.ask(which, BEGIN)
            is_open[which] = True
        elif act < 0.25:
            trio.ask(which, rng.choice((COMMIT, ROLLBACK)))
            is_open[which] = False
        elif act < 0.6:
            values: list[Parameter] = [
                trio.namespace, rng.random() < 0.1, as_json(_values(rng, "st", 2)),
                as_json(_values(rng, "uv", 1)),
                as_json([["lock", name] for name in _values(rng, "abc", 2)]), "[]", True, 1000,
            ]  # fmt: skip
            ((*rows,),) = trio.ask(which, (BEGIN_STEP, values))
            if any(row[0] == "taken" for row in rows):
                # Which of its locks it holds is not modelled: the store releases all of them.
                refused += 1
                trio.ask(which, ROLLBACK)
                is_open[which] = False
        elif act < 0.8:
            event = as_json([step])
            put = "INSERT INTO lockfast.events VALUES ($1, $2, $3)"
            trio.ask(which, (put, [trio.namespace, step * 3 + which, event]))
        else:
            look = (
                "SELECT event FROM lockfast.events WHERE namespace = $1 AND position > $2"
                " ORDER BY position LIMIT $3"
            )
            trio.ask(which, (look, [trio.namespace, 0, 1000]))
    assert 10 < refused < 120, "too few or too many to show anything"


def test_rows_of_a_line_in_portions(trio: Pair) -> None:
    """`load_line`, which random commands do not reach, with windows of every size."""
    put = "INSERT INTO lockfast.lines VALUES ($1, $2, $3, $4, $5, $6, $7)"
    for n in range(20):
        row: list[Parameter] = [
            trio.namespace,
            "lock",
            "a",
            "hvw"[n % 3],
            f"{n * 7 % 20:04x}",
            f"s{n % 4}",
            n,
        ]
        trio.ask(0, (put, row))
    for n in (3, 5):
        finished = (
            "INSERT INTO lockfast.claims VALUES ($1, $2, $3, '[]', 'finished', '', '', 0, 0, 0, 0,"
            " 0, 0, 0, 1, NULL, 0, 0, '', '', '', 0, 0) ON CONFLICT DO NOTHING"
        )
        trio.ask(0, (finished, [trio.namespace, f"s{n % 4}", n]))
    line = "SELECT * FROM lockfast.load_line($1, $2, $3, $4, $5, $6)"
    for letter in "hvwx":
        for after in ("", "0005", "0011", "z"):
            for most in (1, 3, 100):
                trio.ask(0, (line, [trio.namespace, "lock", "a", letter, after, most]))


def test_the_log_is_kept_from_now_on(trio: Pair) -> None:
    keep = "SELECT lockfast.keep_log($1, $2, $3)"
    put = "INSERT INTO lockfast.events VALUES ($1, $2, $3)"
    oldest = "SELECT min(position) FROM lockfast.events WHERE namespace = $1"
    load = "SELECT * FROM lockfast.load($1, '[]', '[]', '[]', true, $2)"
    for position, now_ms in enumerate((1000, 1500, 5000, 9000)):
        trio.ask(0, (put, [trio.namespace, position + 1, "[]"]))
        trio.ask(0, (keep, [trio.namespace, 1000, now_ms]))
        trio.ask(0, (oldest, [trio.namespace]), (load, [trio.namespace, now_ms]))


# ── what waits ───────────────────────────────────────────────────────────────────────


class Stage:
    """Connections of a server or of the model, on which statements may wait."""

    def ask(self, which: int, *statements: Statement) -> Any:
        raise NotImplementedError

    def start(self, which: int, *statements: Statement) -> Any:
        raise NotImplementedError

    def is_waiting(self, started: Any) -> bool:
        raise NotImplementedError

    def end(self, started: Any) -> str:
        """Return the code of the error with which it ended, or an empty string."""
        raise NotImplementedError


class RealStage(Stage):
    def __init__(self, pair: Pair) -> None:
        self._pair = pair
        self._threads = ThreadPoolExecutor(4)

    def ask(self, which: int, *statements: Statement) -> Any:
        return self._pair.real[which].exchange(statements, monotonic() + PATIENCE_S)

    def start(self, which: int, *statements: Statement) -> Future[Any]:
        return self._threads.submit(self.ask, which, *statements)

    def is_waiting(self, started: Future[Any]) -> bool:
        """Return True if it has not ended when a connection waits for a lock, or after a while."""
        watcher = self._pair.real[-1]
        until_s = monotonic() + PATIENCE_S
        while monotonic() < until_s and not started.done():
            ((waiting,),) = watcher.run(
                "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'",
                until_s=until_s,
            )
            if waiting != "0":
                return True
            sleep(0.005)
        return False

    def end(self, started: Future[Any]) -> str:
        try:
            started.result(PATIENCE_S)
        except StoreError as error:
            return str(error)
        return ""


class ModelStage(Stage):
    def __init__(self, pair: Pair) -> None:
        self._pair = pair

    def ask(self, which: int, *statements: Statement) -> Any:
        return ask_model(self._pair.model, self._pair.backends[which], statements)

    def start(self, which: int, *statements: Statement) -> list[Answer]:
        answers: list[Answer] = []
        self._pair.backends[which].begin(statements, answers.append)
        self._pass(20)
        return answers

    def _pass(self, ms: int) -> None:
        kernel = self._pair.model.network.kernel
        kernel.run(until=kernel.now + ms * MS)

    def is_waiting(self, started: list[Answer]) -> bool:
        return not started

    def end(self, started: list[Answer]) -> str:
        self._pass(0 if started else 2000)
        (answer,) = started
        if answer.error is None:
            return ""
        from lockfast.stores.postgresql.errors import translate

        return str(translate(answer.error.code, answer.error.message, "x"))


@pytest.fixture(params=["server", "model"])
def stage(request: pytest.FixtureRequest, server: PostgresServer) -> Iterator[tuple[Stage, str]]:
    pair = Pair(server, 4)
    make: Callable[[Pair], Stage] = RealStage if request.param == "server" else ModelStage
    yield make(pair), pair.namespace
    pair.close()


def locking(namespace: str, names: str, *, shared: str = "", is_try: bool = False) -> Statement:
    """A step that locks resources, and sessions shared."""
    values: list[Parameter] = [
        namespace, False, as_json(list(shared)), "[]", as_json([["lock", name] for name in names]),
        "[]", is_try, 1000,
    ]  # fmt: skip
    return BEGIN_STEP, values


def owning(namespace: str, session: str) -> Statement:
    """A step that locks a session exclusively."""
    return BEGIN_STEP, [namespace, False, "[]", as_json([session]), "[]", "[]", False, 1000]


def test_a_lock_is_waited_for_until_its_transaction_ends(stage: tuple[Stage, str]) -> None:
    play, namespace = stage
    play.ask(0, BEGIN, locking(namespace, "a"))
    waiting = play.start(1, BEGIN, locking(namespace, "a"))
    assert play.is_waiting(waiting)
    play.ask(0, ROLLBACK)
    assert play.end(waiting) == ""
    play.ask(1, COMMIT)


def test_a_shared_lock_waits_behind_an_exclusive_request(stage: tuple[Stage, str]) -> None:
    play, namespace = stage
    play.ask(0, BEGIN, locking(namespace, "", shared="s"))
    exclusive = play.start(1, BEGIN, owning(namespace, "s"))
    assert play.is_waiting(exclusive)
    tried = play.ask(2, BEGIN, locking(namespace, "", shared="s", is_try=True))
    rows = tried.results[1] if isinstance(tried, Answer) else tried[1]
    assert rows == [("taken", None)]
    play.ask(0, COMMIT)
    assert play.end(exclusive) == ""
    play.ask(1, COMMIT)
    play.ask(2, ROLLBACK)


def test_two_that_wait_for_each_other_are_told(stage: tuple[Stage, str]) -> None:
    play, namespace = stage
    play.ask(0, BEGIN, locking(namespace, "a"))
    play.ask(1, BEGIN, locking(namespace, "b"))
    first = play.start(0, locking(namespace, "b"))
    assert play.is_waiting(first)
    second = play.start(1, locking(namespace, "a"))
    told = [play.end(first), play.end(second)]
    assert sum("deadlock" in words for words in told) == 1, told
    assert "" in told


def test_a_row_is_waited_for_and_seen_as_it_is_then(stage: tuple[Stage, str]) -> None:
    """An insert of a row that another transaction is inserting waits, and then conflicts or not."""
    play, namespace = stage
    put: Statement = (
        "INSERT INTO lockfast.logs VALUES ($1, $2, 0, $3) ON CONFLICT (namespace) DO UPDATE"
        " SET position = excluded.position, watchers = excluded.watchers",
        [namespace, 5, 0],
    )
    keep: Statement = ("SELECT lockfast.keep_log($1, $2, $3)", [namespace, 10, 0])
    play.ask(0, BEGIN, put)
    waiting = play.start(1, keep)
    assert play.is_waiting(waiting)
    play.ask(0, COMMIT)
    assert play.end(waiting) == ""
    load: Statement = ("SELECT * FROM lockfast.load($1, '[]', '[]', '[]', true, 0)", [namespace])
    found = play.ask(2, load)
    ((_, clock),) = found.results[0] if isinstance(found, Answer) else found[0]
    assert json.loads(clock or "")[3:] == [5, 10, 0]


# ── notifications and crashes ────────────────────────────────────────────────────────


def test_notifications_are_sent_once_and_only_by_commits(trio: Pair) -> None:
    channel = f"lockfast_{random.randrange(1 << 60):x}"
    heard: list[str] = []
    ear = trio.model.connect(heard.append, lambda: None)
    listen: Statement = (f'LISTEN "{channel}"', ())
    ask_model(trio.model, ear, [listen])
    trio.real[2].exchange([listen], monotonic() + PATIENCE_S)

    def notify(text: str) -> Statement:
        return ("SELECT pg_notify($1, $2)", [channel, text])

    trio.ask(0, BEGIN, notify("undone"), ROLLBACK)
    trio.ask(0, BEGIN, notify("first"), notify("second"), notify("first"), COMMIT)
    trio.ask(1, notify("third"))
    said: list[str] = []
    until_s = monotonic() + PATIENCE_S
    while "third" not in said and monotonic() < until_s:
        said += trio.real[2].notifications()
        sleep(0.005)
    assert heard == said == ["first", "second", "third"]


def test_a_crash_skips_numbers_and_repeats_none() -> None:
    """Sequences continue after what the log covers: at the same number in both."""
    with PostgresServer() as server:
        steps = StoreSteps(server.url(), watched=False)
        model = new_model()
        draw: Statement = ("SELECT lockfast.draw_token($1)", [1])
        align(model, steps.connection, "")
        tokens = model.database.sequences["tokens"]
        tokens.set(0)  # nothing was drawn or logged yet
        backend = model.connect(lambda payload: None, lambda: None)
        given = []
        for _ in range(5):
            ((mine,),) = ask_model(model, backend, [draw]).results[0]
            ((theirs,),) = steps.connection.exchange([draw], monotonic() + PATIENCE_S)[0]
            assert mine == theirs
            given.append(theirs)
        steps.connection.close()
        server.kill()
        server.start()
        model.crash()
        model.start()
        backend = model.connect(lambda payload: None, lambda: None)
        steps = StoreSteps(server.url(), watched=False)
        ((mine,),) = ask_model(model, backend, [draw]).results[0]
        ((theirs,),) = steps.connection.exchange([draw], monotonic() + PATIENCE_S)[0]
        assert mine == theirs
        assert int(theirs or 0) > int(given[-1] or 0)
        steps.connection.close()
