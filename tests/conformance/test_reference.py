"""The SQLite store behaves like the model, step by step, on thousands of random commands."""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from lockfast.conformance.commands import MismatchError, compare
from lockfast.core import commands as c
from lockfast.core.commands import READS
from lockfast.core.table import Limits
from lockfast.sim.model import Model, ModelLimits
from lockfast.stores.sqlite import file, rows
from lockfast.stores.sqlite.file import SqliteFile
from lockfast.stores.sqlite.hot import HotRow

STEPS = 150
SEND_MS = 5000


class FileSteps:
    """A lock database behind `apply`, written by several handles as if each were its own process.

    Another handle reads, so a writer sees the others' writes only if it checks for them.
    """

    def __init__(self, path: Path, writers: int, driver: str) -> None:
        self._wakes: list[c.Wake] = []
        self._files = [SqliteFile(path, driver) for _ in range(1 + writers)]
        self._random = random.Random(1)
        for opened in self._files:
            vars(opened)["_tell"] = self._wakes.append

    def apply(self, command: c.Command, now_ms: int, wall_us: int) -> tuple[c.Reply, list[c.Wake]]:
        vars(file).update(now_ms=lambda: now_ms)
        vars(file)["time"].time_ns = lambda: wall_us * 1000
        self._wakes.clear()
        reader, *writers = self._files
        # Someone watches from the beginning, so that the log can be compared too.
        reader.apply(c.Events(None), SEND_MS)
        chosen = reader if type(command) in READS else self._random.choice(writers)
        return chosen.apply(command, SEND_MS), list(self._wakes)

    def close(self) -> None:
        for opened in self._files:
            opened.close()


@pytest.fixture
def make_subject(
    monkeypatch: pytest.MonkeyPatch, quick_path: Path
) -> Iterator[Callable[..., Callable[[], FileSteps]]]:
    monkeypatch.setattr(file, "now_ms", lambda: 0)
    # A small hot row spills every few steps, so the tables take part in every comparison.
    monkeypatch.setattr(rows, "HOT_MAX", 2000)
    frozen = SimpleNamespace(monotonic=time.monotonic, sleep=time.sleep, time_ns=lambda: 0)
    monkeypatch.setattr(file, "time", frozen)
    numbers = itertools.count()
    made: list[FileSteps] = []

    def make(writers: int, driver: str = "stdlib") -> Callable[[], FileSteps]:
        def subject() -> FileSteps:
            made.append(FileSteps(quick_path / f"{next(numbers)}.db", writers, driver))
            return made[-1]

        return subject

    yield make
    for subject in made:
        subject.close()


def model() -> Model:
    return Model(ModelLimits(*Limits()))


@pytest.mark.parametrize("seed", range(12))
def test_one_writer_and_the_model_agree(
    make_subject: Callable[..., Callable[[], FileSteps]], seed: int
) -> None:
    assert len(compare(make_subject(1), model, seed, STEPS).script) == STEPS


@pytest.mark.parametrize("seed", range(100, 112))
def test_three_writers_and_the_model_agree(
    make_subject: Callable[..., Callable[[], FileSteps]], seed: int
) -> None:
    """No handle works on rows that another has changed since it read them."""
    assert len(compare(make_subject(3), model, seed, STEPS).script) == STEPS


@pytest.mark.parametrize("seed", range(200, 206))
def test_three_writers_through_apsw_and_the_model_agree(
    make_subject: Callable[..., Callable[[], FileSteps]], seed: int
) -> None:
    assert len(compare(make_subject(3, "apsw"), model, seed, STEPS).script) == STEPS


def test_a_writer_that_trusts_what_it_knows_is_found_out(
    make_subject: Callable[..., Callable[[], FileSteps]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The comparison would notice a handle that does not check for others' writes."""
    monkeypatch.setattr(HotRow, "is_current", lambda self: self.version > 0)
    with pytest.raises((MismatchError, AssertionError)):
        compare(make_subject(2), model, 1, STEPS)


def test_rows_that_get_lost_on_their_way_to_the_table_are_found_out(
    make_subject: Callable[..., Callable[[], FileSteps]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The comparison fills the hot row many times over."""
    real = rows.SqliteRows.spill

    def forget_one(self: rows.SqliteRows) -> None:
        self.hot.recent.popitem()
        real(self)

    monkeypatch.setattr(rows.SqliteRows, "spill", forget_one)
    with pytest.raises((MismatchError, AssertionError)):
        compare(make_subject(2), model, 1, STEPS)


def test_deleted_rows_that_come_back_from_the_table_are_found_out(
    make_subject: Callable[..., Callable[[], FileSteps]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A row may vanish from the hot row without a trace only if the table has none of its key."""
    monkeypatch.setattr(rows.SqliteRows, "put", rows.SqliteRows.add)
    with pytest.raises((MismatchError, AssertionError)):
        compare(make_subject(2), model, 1, STEPS)
