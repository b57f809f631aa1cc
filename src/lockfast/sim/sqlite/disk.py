"""A disk below SQLite: a VFS that knows what was synced, and can stop a process at any write.

Files are real files, so that SQLite's own locks and its shared memory work as always. Beside
them the disk remembers the contents that were synced, and what was written since. A power cut
leaves any part of the latter: each 512 bytes of each write by themselves.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from typing import Final, Protocol

import apsw

SECTOR_BYTES: Final = 512
NAME: Final = "lockfast-simulated"
_NUMBERS: Final = {apsw.FullError: apsw.SQLITE_FULL, apsw.IOError: apsw.SQLITE_IOERR}


class Killed(BaseException):
    """The process that wrote is dead."""


class Writer(Protocol):
    """A process, as its disk sees it."""

    disk: Disk

    def before_write(self) -> float:
        """Return the fraction of a write that happens: below 1 if it kills the writer."""
        ...

    @property
    def dead(self) -> bool: ...


Change = tuple[int, bytes] | int
"""Bytes at an offset, or the length to which a file is truncated."""


class Contents:
    """One file: what is certainly on disk, and what may be."""

    __slots__ = ("changes", "synced")

    def __init__(self) -> None:
        self.synced = bytearray()
        self.changes: list[Change] = []

    def sync(self) -> None:
        for change in self.changes:
            _apply(self.synced, change)
        self.changes.clear()

    def cut(self, rng: random.Random) -> None:
        """Keep some of the unsynced writes."""
        share = rng.choice((0.0, 0.2, 0.5, 0.8, 1.0))
        kept: list[Change] = []
        for change in self.changes:
            if isinstance(change, int):
                if rng.random() < share:
                    kept.append(change)
                continue
            offset, data = change
            if share < 1 and rng.random() < 0.5:  # All of it or nothing.
                kept += [change] if rng.random() < share else []
                continue
            for start in range(0, len(data), SECTOR_BYTES):
                if rng.random() < share:
                    kept.append((offset + start, data[start : start + SECTOR_BYTES]))
        self.changes = kept
        self.sync()


def _apply(contents: bytearray, change: Change) -> None:
    if isinstance(change, int):
        del contents[change:]
        return
    offset, data = change
    if offset > len(contents):
        contents.extend(bytes(offset - len(contents)))
    contents[offset : offset + len(data)] = data


class Disk:
    """The files of one directory."""

    def __init__(self) -> None:
        self.full = False
        self._files: dict[str, Contents] = {}
        self._deleted: dict[str, Contents] = {}
        """Deleted without a sync of the directory: a power cut may bring them back."""

    def file(self, path: str) -> Contents:
        found = self._files.get(path)
        if found is None:
            found = self._files[path] = Contents()
            self._deleted.pop(path, None)
        return found

    def delete(self, path: str, *, synced: bool) -> None:
        contents = self._files.pop(path, None)
        if contents is not None and not synced:
            self._deleted[path] = contents

    def cut_power(self, rng: random.Random) -> None:
        """Write what is left to the real disk; no process has a file open."""
        for path, contents in self._deleted.items():
            if rng.random() < 0.5:
                self._files[path] = contents
        self._deleted.clear()
        for path, contents in self._files.items():
            contents.cut(rng)
            with open(path, "wb", opener=_privately) as file:
                file.write(contents.synced)


class _File(apsw.VFSFile):
    def __init__(self, name: str | apsw.URIFilename | None, flags: list[int]) -> None:
        # The default VFS below. Temporary files have no name, so no other process can open them.
        super().__init__("", name, flags)
        path = name if isinstance(name, str) or name is None else name.filename()
        self._writer = _current()
        self._contents = Contents() if path is None else self._writer.disk.file(path)

    def xWrite(self, data: bytes, offset: int) -> None:
        writer = self._writer
        _refuse_the_dead(writer)
        if writer.disk.full and offset >= self.xFileSize():
            raise _error(apsw.FullError, "no space left on the simulated disk")
        share = writer.before_write()
        _refuse_the_dead(writer)
        if share < 1:
            data = data[: int(len(data) * share)]
        self._contents.changes.append((offset, bytes(data)))
        if data:
            super().xWrite(data, offset)
        if share < 1:
            raise Killed

    def xTruncate(self, newsize: int) -> None:
        _refuse_the_dead(self._writer)
        self._contents.changes.append(newsize)
        super().xTruncate(newsize)

    def xSync(self, flags: int) -> None:
        _refuse_the_dead(self._writer)
        self._contents.sync()


class _Vfs(apsw.VFS):
    def __init__(self) -> None:
        super().__init__(NAME, "")

    def xOpen(self, name: str | apsw.URIFilename | None, flags: list[int]) -> _File:
        return _File(name, flags)

    def xDelete(self, filename: str, syncdir: bool) -> None:
        writer = _current()
        _refuse_the_dead(writer)
        writer.disk.delete(filename, synced=syncdir)
        super().xDelete(filename, syncdir)


def _refuse_the_dead(writer: Writer) -> None:
    """Ignore the writes with which SQLite cleans up after a process was killed."""
    if writer.dead:
        raise _error(apsw.IOError, "the process is dead")


def _error(kind: type[apsw.Error], message: str) -> apsw.Error:
    """Return an error with its code, as the library raises it."""
    error = kind(message)
    error.extendedresult = _NUMBERS[kind]  # type: ignore[attr-defined]
    return error


def _privately(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def _nobody() -> Writer:
    raise AssertionError("a file of the simulated disk is used outside of any simulated process")


_current: Callable[[], Writer] = _nobody
_vfs: _Vfs | None = None


def act_as(writer: Callable[[], Writer]) -> Callable[[], Writer]:
    """Set the process that opens and deletes files from now on; return the previous one."""
    global _current, _vfs
    if _vfs is None:
        _vfs = _Vfs()
    before, _current = _current, writer
    return before


def connect(path: str) -> apsw.Connection:
    """Open a database on the disk of the current process."""
    return apsw.Connection(os.fspath(path), vfs=NAME, statementcachesize=256)
