"""The identity of a process, and whether it has exited (Linux).

A pid alone does not identify a process, because the system reuses pids. Boot id, pid namespace, pid
and start time together do.
"""

from __future__ import annotations

import functools
import os
import re
from pathlib import Path
from typing import Final

from lockfast.runtimes import platform

_STATE, _THREADS, _STARTED = 0, 17, 19
"""Indices into the result of `_stat`."""
ZOMBIE: Final = "Z"


def _stat(pid: int) -> list[str]:
    """Return the fields of /proc/PID/stat, from the state on."""
    stat = Path(f"/proc/{pid}/stat").read_text()
    # The second field is the program's name in parentheses, which may contain anything.
    return stat[stat.rindex(")") + 2 :].split()


def _start_ticks(pid: int) -> str:
    """Return when a process started; with its pid, this identifies it until the next boot."""
    return _stat(pid)[_STARTED]


@functools.cache
def boot_id() -> str:
    """Return an id that changes with every boot; "" if the system has none."""
    return platform.boot_id()


@functools.cache
def _namespace(which: str, _pid: int) -> str:
    try:
        return str(os.stat(f"/proc/self/ns/{which}").st_ino)
    except OSError:
        return ""


def network_namespace() -> str:
    """Return what identifies the loopback interface of this process."""
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
    """Return the identity of this process: boot, pid namespace, pid, start time.

    Return "" if the system cannot report the exit of a process.
    """
    return _identity(os.getpid())


class Gone(Exception):
    """The process has exited."""


def _seen_from_here(process: str) -> tuple[int, str] | None:
    """Return pid and start time from the identity that a process stored with its session.

    Return None if it is in another pid namespace, or if the text is not an identity: such a process
    counts as unknown, neither alive nor dead.
    """
    found = re.fullmatch(r"([^:]+):(\d*):([1-9]\d{0,6}):(\d{1,20})", process, re.ASCII)
    if found is None:
        return None
    boot, namespace, pid, start = found.groups()
    if boot != boot_id() or namespace != _namespace("pid", os.getpid()):
        return None
    return int(pid), start


def open_pidfd(process: str) -> int | None:
    """Return a descriptor that becomes readable when this process exits.

    Return None if it cannot be watched from here. Raises Gone if it has already exited.
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
        # Compare after opening the descriptor: if the pid belongs to the right process now, so does
        # the descriptor, even if the pid is reused later.
        same = _start_ticks(pid) == start
    except (OSError, ValueError, IndexError):
        # It has just exited, or it is alive and hidden from us (hidepid).
        if not _has_ended(descriptor):
            os.close(descriptor)
            return None
        same = False
    if not same:
        os.close(descriptor)
        raise Gone
    return descriptor


def has_ended(process: str) -> bool:
    """Return True if this process is known to have exited."""
    # Use no descriptor: a caller that is interrupted (Ctrl-C) would leak it.
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
        # A zombie whose other threads still run is alive; one without threads has exited, even if
        # its parent has not waited for it yet.
        return stat[_STATE] == ZOMBIE and int(stat[_THREADS]) <= 1
    except (OSError, ValueError, IndexError):
        return False  # Hidden from us (hidepid).


def _has_ended(pidfd: int) -> bool:
    poll = platform.poll()
    poll.register(pidfd, platform.POLLIN)
    return bool(poll.poll(0))
