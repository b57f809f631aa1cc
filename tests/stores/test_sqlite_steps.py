"""A step is one transaction: if its process is killed, it is done completely or not at all."""

from __future__ import annotations

import itertools
import os
import random
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from lockfast.core import commands as c
from lockfast.core.table import Table
from lockfast.stores.sqlite import rows
from lockfast.stores.sqlite.file import SqliteFile
from lockfast.stores.sqlite.spilled import SpilledRows

SEND_MS = 5000
KILLS = 25
SCRIPT = 3000
EVENTS = c.Events(None)

pytestmark = pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")  # fork


@pytest.fixture(autouse=True)
def small_hot_row(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small enough that it spills every few steps."""
    monkeypatch.setattr(rows, "HOT_MAX", 1000)


def place(n: int) -> c.Place:
    return c.Place("lock", f"lock {n}", "exclusive")


def names_in(file: SqliteFile) -> set[int]:
    view = file.apply(c.Listing("lock", "", "", 10_000), SEND_MS)
    assert isinstance(view, c.ListingReply)
    return {int(resource.name.split()[1]) for resource in view.resources}


class Story:
    """Locks acquired and released, in the order of a script, by one process after another."""

    def __init__(self, path: Path, seed: int) -> None:
        self.random = random.Random(seed)
        self.path = path
        self.script = list(itertools.islice(self._commands(), SCRIPT))
        self.done = 0
        file = SqliteFile(path, "stdlib")
        file.apply(c.Open("s", 10**9, "owner"), SEND_MS)
        file.close()

    def _commands(self) -> Iterator[tuple[c.Command, frozenset[int]]]:
        """Each step with the locks held before it."""
        held: frozenset[int] = frozenset()
        for n in itertools.count(1):
            while held and self.random.random() < 0.45:
                left = self.random.choice(sorted(held))
                yield c.Leave("s", left, (place(left),)), held
                held -= {left}
            yield c.Enter("s", n, (place(n),)), held
            held |= {n}

    @property
    def held(self) -> frozenset[int]:
        return self.script[self.done][1]

    def run_next(self, file: SqliteFile) -> None:
        file.apply(self.script[self.done][0], SEND_MS)
        self.done += 1

    def run_killed(self) -> None:
        """Run steps in a child that is killed before or after one of its SQL statements."""
        deadly = self.random.randrange(1, 120)
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                os.close(reader)
                self._run_until(deadly, writer)
            finally:
                os._exit(1)
        os.close(writer)
        os.waitpid(child, 0)
        with open(reader, "rb") as done:
            self.done += len(done.read())
        file = SqliteFile(self.path, "stdlib")
        try:
            found = names_in(file)
            if found != self.held:
                self.done += 1
            assert found == self.held
            claims = file.apply(c.Claims("s"), SEND_MS)
            assert isinstance(claims, c.ClaimsReply)
            assert {view.n for view in claims.claims} == found
        finally:
            file.close()

    def _run_until(self, deadly: int, done: int) -> None:
        file: Any = SqliteFile(self.path, "stdlib")
        execute = file._execute
        statements = 0

        def executed(sql: str, *parameters: Any) -> Any:
            nonlocal statements
            statements += 1
            if statements == deadly and deadly % 2:
                os.kill(os.getpid(), signal.SIGKILL)
            result = execute(sql, *parameters)
            if statements == deadly:
                os.kill(os.getpid(), signal.SIGKILL)
            return result

        file._execute = file._rows.hot._execute = file._rows.spilled._execute = executed
        while True:
            self.run_next(file)
            os.write(done, b".")


@pytest.mark.parametrize("seed", range(3))
def test_a_step_is_done_or_not(quick_path: Path, seed: int) -> None:
    story = Story(quick_path / "locks.db", seed)
    for _ in range(KILLS):
        story.run_killed()
    assert story.done > KILLS


def test_a_spill_outside_the_transaction_would_be_seen(
    quick_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows moved in a separate transaction could be lost or come back."""
    change = SpilledRows.change

    def change_at_once(self: SpilledRows, put: Any, deleted: Any) -> None:
        change(self, put, deleted)
        self._execute("COMMIT")
        self._execute("BEGIN IMMEDIATE")

    monkeypatch.setattr(SpilledRows, "change", change_at_once)
    with pytest.raises(AssertionError):
        for seed in range(8, 48):  # the first of them finds it
            story = Story(quick_path / f"{seed}.db", seed)
            for _ in range(KILLS):
                story.run_killed()


@pytest.mark.parametrize("seed", range(10, 13))
def test_a_reader_sees_one_instant(quick_path: Path, seed: int) -> None:
    """Reading needs no gate: others keep writing and spilling during a read."""
    assert_one_instant(quick_path / "locks.db", seed, lambda rows: rows.look())


def test_a_reader_without_a_transaction_would_be_seen(quick_path: Path) -> None:
    def end_transaction(rows: Any) -> None:
        rows.look()
        rows.hot._execute("COMMIT")
        rows.hot._execute("BEGIN")

    with pytest.raises(AssertionError):
        for seed in range(20):
            assert_one_instant(quick_path / f"{seed}.db", seed, end_transaction)


def assert_one_instant(path: Path, seed: int, look: Callable[[Any], None]) -> None:
    story = Story(path, seed)
    writer, reader = SqliteFile(path, "stdlib"), SqliteFile(path, "stdlib")
    seen: list[frozenset[int]] = []

    def go_on() -> None:
        for _ in range(story.random.choice([0, 0, 1, 3, 30])):
            story.run_next(writer)
            seen.append(story.held)

    real: Any = reader._rows

    class ReadAndGoOn:
        log = real.log

        def look(self) -> None:
            look(real)
            go_on()

        def forget(self) -> None:
            real.forget()

    reader._rows = ReadAndGoOn()  # type: ignore[assignment]
    try:
        for _ in range(60):
            seen[:] = [story.held]
            assert names_in(reader) in seen
            go_on()
    finally:
        reader.close()
        writer.close()


def test_another_boot_keeps_counters_and_log(
    quick_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = quick_path / "locks.db"
    story = Story(path, 1)
    file = SqliteFile(path, "stdlib")
    file.apply(EVENTS, SEND_MS)
    for _ in range(30):
        story.run_next(file)
    before = file.apply(EVENTS._replace(after=0), SEND_MS)
    file.close()
    monkeypatch.setattr("lockfast.stores.sqlite.processes.boot_id", lambda: "another")
    file = SqliteFile(path, "stdlib")
    try:
        after = file.apply(EVENTS._replace(after=0), SEND_MS)
        assert isinstance(before, c.EventsReply)
        assert before.events
        assert after == before
        assert names_in(file) == set()
    finally:
        file.close()


@pytest.mark.parametrize("driver", ["stdlib", "apsw"])
def test_a_step_that_is_interrupted_is_rolled_back(
    quick_path: Path, monkeypatch: pytest.MonkeyPatch, driver: str
) -> None:
    """Nothing of it stays, and the same handle can go on."""
    file = SqliteFile(quick_path / "locks.db", driver)
    file.apply(c.Open("ann", 60_000, "ann"), SEND_MS)
    enter, apply = c.Enter("ann", 1, (place(1),)), Table.apply

    def interrupted(self: Table, command: c.Command, now_ms: int, wall_us: int) -> Any:
        apply(self, command, now_ms, wall_us)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Table, "apply", interrupted)
        for command in (enter, c.Listing("lock")):
            with pytest.raises(KeyboardInterrupt):
                file.apply(command, SEND_MS)
    assert names_in(file) == set()
    assert isinstance(file.apply(enter, SEND_MS), c.Granted)
    assert names_in(file) == {1}
    file.close()
