"""The gate: a file lock that one process at a time holds while it writes to the database.

The lock is on a file of its own, `locks.db-gate`, which is empty and carries no state, so that
nobody has a reason to open, copy or restore it.

On Linux it is an *open file description* lock (`F_OFD_SETLK`). A classic POSIX lock belongs to
the process, and any thread that opens and closes the file drops it: `grep -r` in Python would
open the gate under a transaction. `flock` and OFD locks belong to the open file description,
which a forked child shares with its parent: if the parent is killed inside the gate, the child
keeps it shut. So a child closes its copy of the descriptor as soon as it runs (`abandon`), and
until then the mutex that the fork took keeps the parent outside. Where there are no OFD locks
(macOS), a POSIX lock is used, and reading the gate file in a process that uses it is forbidden.

A second byte of the file is locked, shared, by everyone who has the database open. Whoever finds
nobody there, but a write-ahead log, knows that the last user crashed.

If the gate file is deleted, those who hold it open and those who come later use different
gates, until the former notice (`is_current`) and open the new one. Meanwhile SQLite's own write
lock still serializes them: the gate makes steps quick and keeps commits and checkpoints of old
SQLite versions apart, but no grant depends on it.
"""

from __future__ import annotations

import fcntl
import os
import re
import struct
import sys
import time
from typing import Final

from lockfast.errors import StoreUnavailableError
from lockfast.runtimes.platform import yield_cpu
from lockfast.stores.private_files import open_private

WRITERS: Final = 0
"""The byte that the writing process has locked."""
USERS: Final = 1
"""The byte that every process with the database open has locked, shared."""

YIELDS: Final = 20
"""How often a process at a locked gate yields before it sleeps. A step takes about 50 µs."""
SLEEP_FIRST_S: Final = 0.00005
SLEEP_MAX_S: Final = 0.001

OFD: Final = hasattr(fcntl, "F_OFD_SETLK")
LOCK_STRUCT: Final = "hhqqi4x"


def path_of(database: str) -> str:
    return f"{database}-gate"


def _request(kind: int, byte: int) -> bytes:
    return struct.pack(LOCK_STRUCT, kind, os.SEEK_SET, byte, 1, 0)


_ENTER: Final = _request(fcntl.F_WRLCK, WRITERS)
_LEAVE: Final = _request(fcntl.F_UNLCK, WRITERS)


class Gate:
    """One process's descriptor of a gate. Callers serialize its use with their own mutex."""

    def __init__(self, database: str, label: str, *, group: bool = False) -> None:
        self._path = path_of(database)
        self._label = label
        self._group = group
        self._descriptor = self._open()

    def _open(self) -> int:
        flags = os.O_RDWR | os.O_CREAT
        return open_private(self._path, flags, self._label, group=self._group)

    # ── the byte of those who write ──────────────────────────────────────────────────

    def enter(self, until: float) -> None:
        """Wait for the gate until a time of `time.monotonic`.

        Raises StoreUnavailableError, which names the process inside, if that time passes first.
        """
        tries = 0
        sleep_s = SLEEP_FIRST_S
        while not self._try_to_enter():
            tries += 1
            if tries <= YIELDS:
                yield_cpu()
                continue
            if time.monotonic() >= until:
                raise self.shut()
            time.sleep(sleep_s)
            sleep_s = min(sleep_s * 1.5, SLEEP_MAX_S)

    def _try_to_enter(self) -> bool:
        try:
            if OFD:
                fcntl.fcntl(self._descriptor, fcntl.F_OFD_SETLK, _ENTER)
            else:
                fcntl.lockf(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, WRITERS)
        except (BlockingIOError, PermissionError):
            return False
        return True

    def leave(self) -> None:
        """Leave the gate; no effect if we are not inside."""
        if OFD:
            fcntl.fcntl(self._descriptor, fcntl.F_OFD_SETLK, _LEAVE)
        else:
            fcntl.lockf(self._descriptor, fcntl.LOCK_UN, 1, WRITERS)

    # ── the byte of those who use the database ───────────────────────────────────────

    def join(self) -> bool:
        """Register as a user of the database. Return True if there is no other.

        Call it inside the gate only.
        """
        alone = self._lock_users(fcntl.LOCK_EX)
        self._lock_users(fcntl.LOCK_SH)
        return alone

    def _lock_users(self, how: int) -> bool:
        kind = fcntl.F_WRLCK if how == fcntl.LOCK_EX else fcntl.F_RDLCK
        try:
            if OFD:
                fcntl.fcntl(self._descriptor, fcntl.F_OFD_SETLK, _request(kind, USERS))
            else:
                fcntl.lockf(self._descriptor, how | fcntl.LOCK_NB, 1, USERS)
        except (BlockingIOError, PermissionError):
            return False
        return True

    # ── the file ─────────────────────────────────────────────────────────────────────

    def is_current(self) -> bool:
        """Return True if the path still leads to the file that we have open."""
        try:
            return os.path.samestat(os.stat(self._path), os.fstat(self._descriptor))
        except FileNotFoundError:
            return False

    def reopen(self) -> None:
        """Open the file that is at the path now, and close the old one."""
        old, self._descriptor = self._descriptor, self._open()
        os.close(old)

    def close(self) -> None:
        """Close the descriptor, which also leaves the gate."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor != -1:
            os.close(descriptor)

    abandon = close
    """In a forked child, only close the descriptor: *unlocking* it would open the parent's gate."""

    # ── who is inside ────────────────────────────────────────────────────────────────

    def shut(self) -> StoreUnavailableError:
        """Return the error for a gate that did not open in time."""
        pid = self.holder()
        if pid is None:
            return StoreUnavailableError(
                self._label,
                "another process holds the write lock",
                "find it with `lsof` on the gate file; if it is stopped, continue it or kill it",
            )
        return StoreUnavailableError(
            self._label,
            f"process {pid} holds the write lock, probably because it is stopped",
            "continue it or kill it",
        )

    def holder(self) -> int | None:
        """Return the process inside, if there is one and the system shows it."""
        if sys.platform != "linux":
            return None  # F_GETLK uses a different struct there.
        asked = struct.pack(LOCK_STRUCT, fcntl.F_WRLCK, os.SEEK_SET, WRITERS, 1, 0)
        try:
            told = fcntl.fcntl(self._descriptor, fcntl.F_GETLK, asked)
            kind, _, _, _, pid = struct.unpack(LOCK_STRUCT, told)
        except (OSError, struct.error):
            return None
        if kind == fcntl.F_UNLCK:
            return None
        return pid if pid > 0 else self._find_holder()

    def _find_holder(self) -> int | None:
        """Find the descriptor that holds the lock: an OFD lock has no pid."""
        own = os.fstat(self._descriptor)
        for pid in filter(str.isdigit, _listed("/proc")):
            for number in _listed(f"/proc/{pid}/fd"):
                try:
                    if not os.path.samestat(os.stat(f"/proc/{pid}/fd/{number}"), own):
                        continue
                    with open(f"/proc/{pid}/fdinfo/{number}") as opened:
                        info = opened.read()
                except OSError:
                    continue
                if re.search(rf"^lock:.* WRITE .* {WRITERS} {WRITERS}$", info, re.MULTILINE):
                    return int(pid)
        return None


def _listed(directory: str) -> list[str]:
    try:
        return os.listdir(directory)
    except OSError:
        return []
