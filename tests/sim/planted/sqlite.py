"""Bugs planted in the embedded store: rows that differ from the database, half-done steps."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import ExitStack

from lockfast.core.commands import Command, Reply, Wake
from lockfast.core.table import Table
from lockfast.errors import StoreUnavailableError
from lockfast.stores.sqlite import processes
from lockfast.stores.sqlite.file import SqliteFile
from lockfast.stores.sqlite.hot import HotRow
from lockfast.stores.sqlite.rows import SqliteRows
from lockfast.stores.sqlite.spilled import SpilledRows
from tests.sim.planted.bugs import bug, replace


@bug("sqlite: the version is not compared", promise="exclusion", store="sqlite")
def _(stack: ExitStack) -> None:
    right = HotRow.is_current

    def wrong(self: HotRow) -> bool:
        right(self)
        return self.version >= 0

    replace(stack, HotRow, "is_current", wrong)


@bug("sqlite: a spill leaves deleted rows", promise="consistent", store="sqlite")
def _(stack: ExitStack) -> None:
    right = SpilledRows.change

    def wrong(self: SpilledRows, put: Iterable[tuple[str, str]], deleted: Iterable[str]) -> None:
        right(self, put, ())

    replace(stack, SpilledRows, "change", wrong)


@bug("sqlite: what a failed step wrote stays in the cache", promise="consistent", store="sqlite")
def _(stack: ExitStack) -> None:
    def wrong(self: SqliteRows) -> None:
        self._writes = {}
        self._added = set()

    replace(stack, SqliteRows, "forget", wrong)


@bug("sqlite: sessions survive a reboot", promise="left behind", store="sqlite")
def _(stack: ExitStack) -> None:
    def wrong(self: SqliteRows, boot: str, now_ms: int, wall_ms: int) -> None:
        self.look()

    replace(stack, SqliteRows, "open", wrong)


@bug("sqlite: the last token is not stored", promise="tokens", store="sqlite")
def _(stack: ExitStack) -> None:
    right = HotRow.save

    def wrong(self: HotRow, recent: str, log: str) -> None:
        token, self.meta.token = self.meta.token, 0
        right(self, recent, log)
        self.meta.token = token

    replace(stack, HotRow, "save", wrong)


@bug("sqlite: commits that the disk may reorder", promise="readable", store="sqlite")
def _(stack: ExitStack) -> None:
    right = SqliteFile._set_up

    def wrong(self: SqliteFile) -> None:
        right(self)
        self._execute("PRAGMA synchronous = OFF").fetchall()

    replace(stack, SqliteFile, "_set_up", wrong)


@bug("sqlite: a stopped process is taken for dead", promise="exclusion", store="sqlite")
def _(stack: ExitStack) -> None:
    right = processes.has_ended

    def wrong(process: str) -> bool:
        found = processes._seen_from_here(process)
        return right(process) or (found is not None and processes._stat(found[0])[0] == "T")

    replace(stack, processes, "has_ended", wrong)


@bug("sqlite: a step that failed is answered all the same", promise="exclusion", store="sqlite")
def _(stack: ExitStack) -> None:
    right, apply = SqliteFile._write, Table.apply
    replies: list[Reply] = []

    def noted(self: Table, command: Command, now_ms: int, wall_us: int) -> tuple[Reply, list[Wake]]:
        result = apply(self, command, now_ms, wall_us)
        replies[:] = [result[0]]
        return result

    def wrong(self: SqliteFile, command: Command, until: float, wakes: list[Wake]) -> Reply:
        replies.clear()
        try:
            return right(self, command, until, wakes)
        except StoreUnavailableError:
            if not replies:
                raise
            return replies[0]

    replace(stack, Table, "apply", noted)
    replace(stack, SqliteFile, "_write", wrong)
