"""Locks that show SQLite, in every process, that this one uses the database.

SQLite takes a shared lock on the database and one on the wal-index (`-shm`). Both are POSIX locks,
which the system drops as soon as the process closes *any* descriptor of the file: a thread that
copies the directory drops them. From then on

- the next process that closes the database takes itself for the last one and deletes the
  write-ahead log. Those that have it open go on in the deleted file, and a process that comes
  later starts a new one: two databases, and two holders of one lock;
- the next process that opens the database truncates the wal-index that others have mapped.

So each user locks the same bytes a second time, by open file description locks (`F_OFD_SETLK`),
which end with their own descriptor only. Elsewhere than on Linux there are none.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import struct
from typing import Final

from lockfast.stores.sqlite.gate import LOCK_STRUCT, OFD

# https://www.sqlite.org/fileformat2.html#the_lock_byte_page and walformat.html, "WAL locks".
_SHARED_BYTES: Final = (0x40000002, 510)
_DEAD_MAN_SWITCH: Final = (128, 1)


class Presence:
    """Locks that are held as long as this process has the database open."""

    def __init__(self, database: str) -> None:
        self._locked: list[tuple[int, tuple[int, int]]] = []
        if not OFD:
            return
        for path, bytes_ in ((database, _SHARED_BYTES), (f"{database}-shm", _DEAD_MAN_SWITCH)):
            with contextlib.suppress(FileNotFoundError):
                descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
                self._locked.append((descriptor, bytes_))
                # A program that bypasses the gate may have them locked. Then SQLite's own locks
                # must do, as they do elsewhere.
                with contextlib.suppress(BlockingIOError, PermissionError):
                    _set(descriptor, fcntl.F_RDLCK, bytes_)

    def end(self) -> None:
        """Unlock, before SQLite closes the database: it looks for the locks of other users."""
        for descriptor, bytes_ in self._locked:
            _set(descriptor, fcntl.F_UNLCK, bytes_)

    def close(self) -> None:
        """Close the descriptors, after SQLite has closed its own: this drops its locks."""
        locked, self._locked = self._locked, []
        for descriptor, _ in locked:
            os.close(descriptor)


def _set(descriptor: int, kind: int, bytes_: tuple[int, int]) -> None:
    request = struct.pack(LOCK_STRUCT, kind, os.SEEK_SET, *bytes_, 0)
    fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, request)
