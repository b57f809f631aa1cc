"""Whoever is killed while writing a step leaves it done or not done, and nothing else.

The head and the table are two files: what is in one and what is in the other belong
together at every instant, for those who write next and for those who only look.
"""

from __future__ import annotations

import errno
import functools
import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from lockfast.core import commands as c
from lockfast.errors import StoreError, StoreUnavailableError
from lockfast.stores.sqlite import head, rows
from lockfast.stores.sqlite.file import SqliteFile
from lockfast.stores.sqlite.head import SLOT_BYTES, Head

SEND_MS = 5000
STEPS = 400
EVENTS = c.Events(None)


class Killed(BaseException):
    """The process ends here."""


class Writer:
    """One process after another that takes and gives back locks; each may be killed.

    A step is killed before, in the middle of or after a write to the head.
    """

    def __init__(self, path: Path, seed: int) -> None:
        self.random = random.Random(seed)
        self.held: dict[int, str] = {}
        self.killed = 0
        self._path = path
        self._n = 0
        self._deadly_write: tuple[int, str] | None = None
        self._writes = 0
        self._is_applied = self._is_done = False
        self.file = self._process()
        self.file.apply(c.Open("s", 10**9, "owner"), SEND_MS)

    def _process(self) -> SqliteFile:
        file = SqliteFile(self._path, "stdlib")
        opened: Any = file
        apply, execute, write = opened._table.apply, opened._rows._execute, opened._head.write

        def applied(*arguments: Any) -> Any:
            self._is_applied = True
            return apply(*arguments)

        def executed(sql: str, *parameters: Any) -> Any:
            done = execute(sql, *parameters)
            self._is_done |= self._is_applied and sql == "COMMIT"
            return done

        def written(version: int, body: bytes) -> None:
            self._writes += 1
            when = self._deadly_write
            if when is None or when[0] != self._writes:
                write(version, body)
                return
            if when[1] == "after":
                write(version, body)
            elif when[1] == "half-way":
                both = functools.partial(write, version, body)
                self._write_half(opened._head._slots, both, version, len(body))
            if when[1] != "before" and opened._head.read() == (version, body):
                # Also one that was half written, if the other half was there from before.
                self._is_done |= self._is_applied and not self._is_marked_odd(body)
            raise Killed

        opened._table.apply = applied
        opened._rows._execute = executed
        opened._head.write = written
        return file

    @staticmethod
    def _is_marked_odd(body: bytes) -> bool:
        return int(body.split(b" ", 2)[1]) % 2 == 1

    def _write_half(self, slots: Any, write: Callable[[], None], version: int, size: int) -> None:
        at = version % 2 * SLOT_BYTES
        before = slots[at : at + SLOT_BYTES]
        write()
        middle = size // 2
        if self.random.random() < 0.5:  # memory is copied in any order
            slots[at : at + middle] = before[:middle]
        else:
            slots[at + middle : at + SLOT_BYTES] = before[middle:]

    def step(self) -> None:
        """Take a lock or give one back; perhaps die of it, and be followed by another."""
        command: c.Command
        if self.held and self.random.random() < 0.45:
            n = self.random.choice(list(self.held))
            command = c.Leave("s", n, (self._place(self.held[n]),))
        else:
            self._n = n = self._n + 1
            command = c.Enter("s", n, (self._place(f"lock {n}"),))
        self._writes, self._is_applied, self._is_done = 0, False, False
        self._deadly_write = None
        if self.random.random() < 0.3:
            when = self.random.choice(["before", "half-way", "after"])
            self._deadly_write = (self.random.choice([1, 1, 2]), when)
        try:
            self.file.apply(command, SEND_MS)
            self._is_done = True
        except Killed:
            self.killed += 1
            if self.random.random() < 0.5:
                self.file.close()
                self.file = self._process()
        if not self._is_done:
            self._n -= isinstance(command, c.Enter)
        elif isinstance(command, c.Enter):
            self.held[n] = f"lock {n}"
        else:
            del self.held[n]

    @staticmethod
    def _place(name: str) -> c.Place:
        return c.Place("lock", name, "exclusive")


def names_in(file: SqliteFile) -> set[str]:
    view = file.apply(c.Listing("lock", "", "", 10_000), SEND_MS)
    assert isinstance(view, c.ListingReply)
    return {resource.name for resource in view.resources}


@pytest.fixture(autouse=True)
def small_head(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that it is emptied every few steps."""
    monkeypatch.setattr(rows, "BODY_MAX", 1000)


@pytest.fixture
def make(quick_path: Path) -> Iterator[Callable[[int], Writer]]:
    made: list[Writer] = []

    def make_one(seed: int) -> Writer:
        made.append(Writer(quick_path / "locks.db", seed))
        return made[-1]

    yield make_one
    for writer in made:
        writer.file.close()


def run(writer: Writer, reader: SqliteFile) -> None:
    for _ in range(STEPS):
        writer.step()
        if writer.random.random() < 0.3:
            assert names_in(reader) == set(writer.held.values())
    assert names_in(reader) == names_in(writer.file) == set(writer.held.values())


@pytest.mark.parametrize("seed", range(6))
def test_a_step_is_done_or_not(make: Callable[[int], Writer], quick_path: Path, seed: int) -> None:
    writer = make(seed)
    reader = SqliteFile(quick_path / "locks.db", "stdlib")
    try:
        run(writer, reader)
        assert writer.killed > STEPS / 10
        assert reader._rows._base()[0] > STEPS / 10, "the head was emptied many times"
    finally:
        reader.close()


def no_mark(self: rows.SqliteRows) -> None:
    self._mark += 2
    self._execute("BEGIN IMMEDIATE")
    self._move()
    self._execute("COMMIT")


def always_as_it_stands(body: bytes) -> Any:
    parts = SPLIT(body)
    return parts._replace(mark=parts.mark - parts.mark % 2)


def never_as_it_stands(body: bytes) -> Any:
    parts = SPLIT(body)
    return parts._replace(recent=[]) if parts.mark % 2 else parts


SPLIT = rows._split


@pytest.mark.parametrize(
    ("where", "what", "instead"),
    [
        (rows.SqliteRows, "_empty_head", no_mark),
        (rows, "_split", always_as_it_stands),
        (rows, "_split", never_as_it_stands),
        (head, "crc32", lambda body, seed: 0),
    ],
)
def test_it_would_be_seen_if_it_were_not(
    make: Callable[[int], Writer],
    quick_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    where: Any,
    what: str,
    instead: Any,
) -> None:
    """Each of these leaves out one part of how the head is written."""
    monkeypatch.setattr(where, what, instead)
    with pytest.raises((AssertionError, LookupError, ValueError, AttributeError, StoreError)):
        for seed in range(20):
            (quick_path / str(seed)).mkdir()
            writer = Writer(quick_path / str(seed) / "locks.db", seed)
            reader = SqliteFile(quick_path / str(seed) / "locks.db", "stdlib")
            try:
                run(writer, reader)
            finally:
                reader.close()
                writer.file.close()


# ── those who only look ──────────────────────────────────────────────────────────────


@pytest.mark.parametrize("seed", range(10, 16))
def test_who_looks_on_sees_one_instant(
    make: Callable[[int], Writer],
    quick_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    seed: int,
) -> None:
    """While it looks at the table, and then at the head, others go on."""
    assert_one_instant(make(seed), quick_path, monkeypatch)


def test_it_would_be_seen_if_it_saw_two(
    make: Callable[[int], Writer], quick_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    look = rows.SqliteRows.look

    def careless(self: rows.SqliteRows) -> bool:
        look(self)
        return True

    monkeypatch.setattr(rows.SqliteRows, "look", careless)
    with pytest.raises(AssertionError):
        assert_one_instant(make(10), quick_path, monkeypatch)


def assert_one_instant(writer: Writer, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reader = SqliteFile(path / "locks.db", "stdlib")
    opened: Any = reader
    seen: list[set[str]] = []
    base = opened._rows._base

    def go_on() -> None:
        for _ in range(writer.random.choice([0, 0, 0, 1, 3, 30])):
            writer.step()
            seen.append(set(writer.held.values()))

    def read_table_and_go_on() -> Any:
        found = base()
        go_on()
        return found

    opened._rows._base = read_table_and_go_on
    try:
        for _ in range(150):
            seen[:] = [set(writer.held.values())]
            assert names_in(reader) in seen
            go_on()
    finally:
        reader.close()


def test_a_head_that_was_overwritten_is_told_of(quick_path: Path) -> None:
    """With two slots that are both wrong there is nothing to go on from."""
    file = SqliteFile(quick_path / "locks.db", "stdlib")
    try:
        file.apply(c.Open("s", 10**9, "owner"), SEND_MS)
        with open(quick_path / "locks.db-head", "r+b") as overwritten:
            overwritten.write(b"x" * 2 * SLOT_BYTES)
        with pytest.raises(StoreError, match=r"deleted or replaced.*connect again"):
            file.apply(c.Enter("s", 1, (Writer._place("a"),)), SEND_MS)
        with pytest.raises(StoreError, match=r"deleted or replaced.*connect again"):
            names_in(file)
    finally:
        file.close()
    again = SqliteFile(quick_path / "locks.db", "stdlib")
    try:
        assert names_in(again) == set()
    finally:
        again.close()


def test_a_head_of_another_boot_keeps_counters_and_log(
    quick_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = Writer(quick_path / "locks.db", 1)
    writer.file.apply(EVENTS, SEND_MS)
    for _ in range(30):
        writer.step()
    before = writer.file.apply(EVENTS._replace(after=0), SEND_MS)
    writer.file.close()
    monkeypatch.setattr("lockfast.stores.sqlite.processes.boot_id", lambda: "another")
    file = SqliteFile(quick_path / "locks.db", "stdlib")
    try:
        after = file.apply(EVENTS._replace(after=0), SEND_MS)
        assert isinstance(before, c.EventsReply)
        assert before.events
        assert after == before
        assert names_in(file) == set()
    finally:
        file.close()


def test_a_disk_that_is_full_from_the_beginning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is mapped into memory must be there in full: else to touch it is death."""
    write = os.pwrite

    def write_little(descriptor: int, data: bytes, at: int) -> int:
        if at >= 4000:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(descriptor, data[:1000], at)

    with monkeypatch.context() as full:
        full.setattr(os, "pwrite", write_little)
        with pytest.raises(StoreUnavailableError, match=r"disk is full.*nothing was lost"):
            SqliteFile(tmp_path / "locks.db", "stdlib")
    file = SqliteFile(tmp_path / "locks.db", "stdlib")
    assert names_in(file) == set()
    file.close()


def test_slots(tmp_path: Path) -> None:
    """The newest that is whole counts."""
    made = Head(tmp_path / "locks.db")
    other = Head(tmp_path / "locks.db")
    try:
        with pytest.raises(head.Damaged):
            made.read()
        made.write(5, b"five")
        made.write(6, b"six")
        assert other.read() == (6, b"six")
        assert other.is_newest(6)
        made.write(7, b"seven")
        assert not other.is_newest(6)
        other._slots[SLOT_BYTES + 20] ^= 1
        assert made.read() == (6, b"six")
    finally:
        made.close()
        other.close()
