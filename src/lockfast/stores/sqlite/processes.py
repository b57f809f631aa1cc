"""The identity of a process, and whether it has ended (Linux).

A pid alone does not identify a process, because the system reuses pids. Boot id, pid namespace,
pid and start time together do.
"""

from __future__ import annotations

import functools
import os
import re
from pathlib import Path
from typing import Final

from lockfast.runtimes import platform

_STATE, _THREADS, _STARTED = 0, 17, 19
"""Positions in what `_stat` returns."""
ZOMBIE: Final = "Z"


def _stat(pid: int) -> list[str]:
    """The fields of /proc/PID/stat, from the state on."""
    stat = Path(f"/proc/{pid}/stat").read_text()
    # The second field is the program's name in parentheses, and may contain anything.
    return stat[stat.rindex(")") + 2 :].split()


def _start_ticks(pid: int) -> str:
    """When a process started; with its pid, this names it until the next boot."""
    return _stat(pid)[_STARTED]


@functools.cache
def boot_id() -> str:
    """Changes with every boot; "" where the system has none."""
    return platform.boot_id()


@functools.cache
def _namespace(which: str, _pid: int) -> str:
    try:
        return str(os.stat(f"/proc/self/ns/{which}").st_ino)
    except OSError:
        return ""


def network_namespace() -> str:
    """Identifies the loopback interface of this process."""
    return _namespace("net", os.getpid())


@functools.cache
def _identity(pid: int) -> str:
    if not hasattr(os, "pidfd_open") or not boot_id():
        return ""
    try:
        return f"{boot_id()}:{_namespace('pid', pid)}:{pid}:{_start_ticks(pid)}"
    except (OSError, ValueError, IndexError):
        return ""


def identity() -> str:
    """This process: boot, pid namespace, pid, start time; "" where the death of a
    process cannot be watched."""
    return _identity(os.getpid())


class Gone(Exception):
    """The process has ended."""


def _seen_from_here(process: str) -> tuple[int, str] | None:
    """Pid and start time of a process, from the identity that it stored with its session.

    None if it is in another pid namespace, or if the text is not an identity: whatever
    somebody wrote into the database, such a process is unknown to us, neither alive nor dead.
    """
    found = re.fullmatch(r"([^:]+):(\d*):([1-9]\d{0,6}):(\d{1,20})", process, re.ASCII)
    if found is None:
        return None
    boot, namespace, pid, start = found.groups()
    if boot != boot_id() or namespace != _namespace("pid", os.getpid()):
        return None
    return int(pid), start


def open_pidfd(process: str) -> int | None:
    """Return a descriptor that becomes readable when this process ends.

    None if it cannot be watched from here. Raises Gone if it has ended already.
    """
    found = _seen_from_here(process)
    if found is None:
        return None
    pid, start = found
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        raise Gone from None
    except OSError:
        return None
    try:
        # Compared after the descriptor was opened: if the pid belongs to the right process now,
        # so does the descriptor, even if the pid is reused later.
        same = _start_ticks(pid) == start
    except (OSError, ValueError, IndexError):
        # It has just ended, or it lives and is hidden from us (hidepid).
        if not _has_ended(descriptor):
            os.close(descriptor)
            return None
        same = False
    if not same:
        os.close(descriptor)
        raise Gone
    return descriptor


def has_ended(process: str) -> bool:
    """Whether this process is known to have ended."""
    # Without a descriptor: a caller that is interrupted (Ctrl-C) would leak it.
    found = _seen_from_here(process)
    if found is None:
        return False
    pid, start = found
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        pass
    try:
        stat = _stat(pid)
        if stat[_STARTED] != start:
            return True
        # A zombie with other threads lives on without its first thread. One without has ended,
        # even if its parent has not waited for it yet.
        return stat[_STATE] == ZOMBIE and int(stat[_THREADS]) <= 1
    except (OSError, ValueError, IndexError):
        return False  # hidden from us (hidepid)


def _has_ended(pidfd: int) -> bool:
    poll = platform.poll()
    poll.register(pidfd, platform.POLLIN)
    return bool(poll.poll(0))
