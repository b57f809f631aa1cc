"""The SQLite library in use: the standard library's, or apsw with a SQLite of its own."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from lockfast.errors import (
    OutcomeUnknownError,
    StoreError,
    StoreMisconfiguredError,
    StoreUnavailableError,
    UnsupportedError,
)

BUSY_MS: Final = 2000
"""How long SQLite waits for its own lock, which only programs that bypass the gate can hold."""
STATEMENTS_CACHED: Final = 256

# Primary result codes, https://www.sqlite.org/rescode.html
_PERM, _BUSY, _LOCKED, _NOMEM, _READONLY, _IOERR, _CORRUPT = 3, 5, 6, 7, 8, 10, 11
_FULL, _CANTOPEN, _NOTADB = 13, 14, 26


class Driver(NamedTuple):
    name: str
    errors: tuple[type[BaseException], ...]
    connect: Callable[[str], Any]
    code: Callable[[BaseException], int]


def load(name: str) -> Driver:
    """Return the driver of this name: `stdlib` or `apsw`."""
    if name == "stdlib":
        return _stdlib()
    if name == "apsw":
        return _apsw()
    raise UnsupportedError(f"driver={name}", "the drivers are stdlib and apsw")


def _stdlib() -> Driver:
    import sqlite3

    def connect(path: str) -> Any:
        return sqlite3.connect(
            path,
            timeout=BUSY_MS / 1000,
            isolation_level=None,
            check_same_thread=False,
            cached_statements=STATEMENTS_CACHED,
        )

    return Driver(
        "stdlib",
        (sqlite3.Error,),
        connect,
        lambda error: getattr(error, "sqlite_errorcode", 0) or 0,
    )


def _apsw() -> Driver:
    try:
        apsw = importlib.import_module("apsw")
    except ImportError:
        raise UnsupportedError(
            "driver=apsw", "the package apsw is not installed", "pip install 'lockfast[sqlite]'"
        ) from None

    def connect(path: str) -> Any:
        connection = apsw.Connection(path, statementcachesize=STATEMENTS_CACHED)
        connection.set_busy_timeout(BUSY_MS)
        return connection

    return Driver(
        "apsw",
        (apsw.Error,),
        connect,
        lambda error: getattr(error, "extendedresult", 0) or 0,
    )


def translate(code: int, message: str, label: str) -> StoreError:
    """Return the error for a caller, with what to do about it."""
    primary = code & 0xFF
    if primary == _FULL:
        return StoreUnavailableError(label, "the disk is full", "free some space; nothing was lost")
    if primary in (_BUSY, _LOCKED):
        return StoreUnavailableError(
            label,
            f"another program keeps the database locked ({message})",
            "close what opens it without lockfast, for example a transaction in `sqlite3`",
        )
    if primary in (_CORRUPT, _NOTADB):
        return damaged(label, message)
    if primary in (_PERM, _READONLY, _CANTOPEN):
        return StoreMisconfiguredError(
            label,
            f"cannot be opened for writing ({message})",
            "give this user the right to write to the file and its directory",
        )
    if primary == _IOERR:
        return OutcomeUnknownError(label, f"the disk failed ({message})", "check the disk")
    if primary == _NOMEM:
        return StoreUnavailableError(label, "memory ran out")
    return StoreError(label, f"SQLite reports: {message}")


def damaged(label: str, message: str) -> StoreError:
    return StoreError(
        label,
        f"is damaged or not a database ({message})",
        "stop everything that uses it and move it away: lockfast creates another, "
        "in which all locks are free and tokens go on rising",
    )
