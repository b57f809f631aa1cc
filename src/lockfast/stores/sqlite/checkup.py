"""`lockfast doctor` for a SQLite database: check it, print it as text, or empty it."""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from lockfast.core.wording import counted
from lockfast.stores.diagnosis import Diagnosis, Maintenance, live_sessions
from lockfast.stores.sqlite import filesystem
from lockfast.stores.sqlite.file import SqliteFile, open_file
from lockfast.stores.sqlite.packing import UnreadableError, unpack, unpack_event

if TYPE_CHECKING:
    from lockfast.stores.sqlite import Address

FIXED: Final = ((3, 51, 3), (3, 50, 7), (3, 44, 6))
"""The SQLite releases, per branch, since which a commit may overlap a checkpoint."""
TIMEOUT_S: Final = 5.0
UNREADABLE_SHOWN: Final = 3


class SqliteMaintenance(Maintenance):
    def __init__(self, label: str, address: Address) -> None:
        super().__init__(label)
        self._address = address

    def examine(self) -> Iterator[Diagnosis]:
        with self._opened() as file:
            yield _library(file)
            yield self._place()
            yield _gate(file)
            yield _pages(file)
            yield from _contents(file)

    def dump(self) -> Iterator[str]:
        with self._opened() as file, file.transaction("BEGIN") as execute:
            for table, columns in (
                ("hot", "version, boot, token, position, due_ms, watchers, log_until_ms"),
                ("rows", "k, v"),
                ("log", "position, entry"),
            ):
                yield f"{table}: {columns}"
                for row in execute(f"SELECT {columns} FROM {table} ORDER BY 1"):
                    yield "  " + _shown("\t".join(map(str, row)))
            yield "hot.recent: key, change"
            for line in execute("SELECT recent FROM hot").fetchone()[0].splitlines():
                yield "  " + _shown(line)
            yield "hot.log: entry"
            for line in execute("SELECT log FROM hot").fetchone()[0].splitlines():
                yield "  " + _shown(line)

    def reset(self) -> Iterator[Diagnosis]:
        with self._opened() as file:
            sessions, resources = file.reset(time.monotonic() + TIMEOUT_S)
        yield Diagnosis("sessions", f"{sessions} ended")
        yield Diagnosis("locks", f"{resources} freed")

    @contextlib.contextmanager
    def _opened(self) -> Iterator[SqliteFile]:
        path, driver, group = self._address
        file = open_file(path, driver, group=group)
        try:
            yield file
        finally:
            file.close()

    def _place(self) -> Diagnosis:
        path = os.path.realpath(self._address.path)
        kind = filesystem.filesystem_type(self._address.path.parent)
        sizes = [
            f"{suffix.lstrip('-') or 'database'} {os.path.getsize(path + suffix)} B"
            for suffix in filesystem.SUFFIXES
            if os.path.exists(path + suffix)
        ]
        shared = ", shared with its group" if self._address.group else ""
        return Diagnosis("files", f"{', '.join(sizes)}, on {kind or 'an unknown system'}{shared}")


def _library(file: SqliteFile) -> Diagnosis:
    with file.transaction("BEGIN") as execute:
        (text,) = execute("SELECT sqlite_version()").fetchone()
    version = tuple(map(int, text.split(".")))
    fixed = any(version >= first and version[:2] == first[:2] for first in FIXED)
    found = f"SQLite {text} through {file.driver_name}"
    if fixed or version >= FIXED[0]:
        return Diagnosis("library", found)
    return Diagnosis(
        "library",
        found,
        "note",
        "it can corrupt a database that other programs write to; driver=apsw brings a newer one",
    )


def _gate(file: SqliteFile) -> Diagnosis:
    started = time.perf_counter()
    with file.behind_gate(time.monotonic() + TIMEOUT_S):
        took_ms = (time.perf_counter() - started) * 1000
    return Diagnosis("gate", f"entered after {took_ms:.1f} ms")


def _pages(file: SqliteFile) -> Diagnosis:
    with file.transaction("BEGIN") as execute:
        found = [text for (text,) in execute("PRAGMA quick_check(3)").fetchall()]
    if found == ["ok"]:
        return Diagnosis("pages", "intact")
    return Diagnosis(
        "pages",
        "; ".join(found),
        "bad",
        "stop everything that uses the database and move it away",
    )


def _contents(file: SqliteFile) -> Iterator[Diagnosis]:
    with file.transaction("BEGIN") as execute:
        unreadable, kinds = _read_all(execute)
    if unreadable:
        shown = "; ".join(unreadable[:UNREADABLE_SHOWN])
        yield Diagnosis(
            "rows",
            f"{len(unreadable)} that lockfast did not write: {shown}",
            "bad",
            "run lockfast reset: it frees all locks and keeps tokens rising",
        )
    else:
        living = live_sessions(lambda command: file.apply(command, int(TIMEOUT_S * 1000)))
        parts = (counted(living, "session"), counted(kinds.get("c", 0), "claim"))
        used = counted(kinds.get("r", 0), "lock")
        yield Diagnosis("rows", f"{', '.join(parts)}, {used} in use")


def _read_all(execute: Any) -> tuple[list[str], dict[str, int]]:
    """Return the rows that cannot be read, and the number of rows of each family."""
    unreadable: list[str] = []
    kinds: dict[str, int] = {}
    rows = dict(execute("SELECT k, v FROM rows").fetchall())
    recent, log = execute("SELECT recent, log FROM hot").fetchone()
    for line in recent.splitlines() if isinstance(recent, str) else ():
        key, _, change = line.partition("\t")
        if change == "-":
            rows.pop(key, None)
        else:
            rows[key] = change[1:]
    for key, text in rows.items():
        try:
            unpack(key, text)
            kinds[key[:1]] = kinds.get(key[:1], 0) + 1
        except UnreadableError as error:
            unreadable.append(str(error))
    entries = [entry for (entry,) in execute("SELECT entry FROM log").fetchall()]
    for entry in [*entries, *(log.splitlines() if isinstance(log, str) else ())]:
        try:
            unpack_event(entry)
        except UnreadableError as error:
            unreadable.append(str(error))
    return unreadable, kinds


def _shown(line: str) -> str:
    """Return a line without the secrets that authenticate wakes."""
    return re.sub(r"(\d+@\d*#)[0-9a-f]+", r"\1***", line).replace("\x1f", "␟")
