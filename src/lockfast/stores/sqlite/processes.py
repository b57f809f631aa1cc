"""Who a process is, so that its death can be told from another's birth (Linux)."""

from __future__ import annotations

import functools
import os
import select
from pathlib import Path
from typing import Final

_STATE, _THREADS, _STARTED = 0, 17, 19
"""Of what `_stat` tells."""
ZOMBIE: Final = "Z"


def _stat(pid: int) -> list[str]:
    """What the system tells of a process, from its state on."""
    stat = Path(f"/proc/{pid}/stat").read_text()
    # The second field is the program's name in parentheses, and may hold anything.
    return stat[stat.rindex(")") + 2 :].split()


def _start_ticks(pid: int) -> str:
    """When a process started; with its pid, this names it until the next boot."""
    return _stat(pid)[_STARTED]


@functools.cache
def boot_id() -> str:
    """Changes with every boot; "" where that cannot be told."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


@functools.cache
def _namespace(which: str, _pid: int) -> str:
    try:
        return str(os.stat(f"/proc/self/ns/{which}").st_ino)
    except OSError:
        return ""


def network_namespace() -> str:
    """Which loopback this process talks to."""
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
    """This process: boot, pid namespace, pid, start time; "" where deaths cannot be seen."""
    return _identity(os.getpid())


class Gone(Exception):
    """The process has ended."""


def _seen_from_here(process: str) -> tuple[int, str] | None:
    """Pid and start time by its identity; None if its pid means nothing to us."""
    boot, namespace, pid, start = process.split(":")
    if boot != boot_id() or namespace != _namespace("pid", os.getpid()):
        return None
    return int(pid), start


def open_pidfd(process: str) -> int | None:
    """A descriptor that becomes readable when this process ends.

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
        # Asked after the descriptor was opened: if it is the same process now, the
        # descriptor is of that process, even if the pid is given away later.
        same = _start_ticks(pid) == start
    except (OSError, ValueError, IndexError):
        # It ended just now, or is hidden from us (hidepid) and lives.
        if not _has_ended(descriptor):
            os.close(descriptor)
            return None
        same = False
    if not same:
        os.close(descriptor)
        raise Gone
    return descriptor


def has_ended(process: str) -> bool:
    """Whether it is known that this process has ended."""
    # Without a descriptor: whoever asks may be interrupted (Ctrl-C) and would leave it open.
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
        # Its first thread alone may have ended; and one that ended may not be waited for yet.
        return stat[_STATE] == ZOMBIE and int(stat[_THREADS]) <= 1
    except (OSError, ValueError, IndexError):
        return False  # hidden from us (hidepid)


def _has_ended(pidfd: int) -> bool:
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    return bool(poll.poll(0))
