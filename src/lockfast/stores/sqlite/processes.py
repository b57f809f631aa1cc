"""Who a process is, so that its death can be told from another's birth (Linux)."""

from __future__ import annotations

import functools
import os
import select
from pathlib import Path


def _start_ticks(pid: int) -> str:
    """When a process started; with its pid, this names it until the next boot."""
    stat = Path(f"/proc/{pid}/stat").read_text()
    # The second field is the program's name in parentheses, and may hold anything.
    return stat[stat.rindex(")") + 2 :].split()[19]


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


def open_pidfd(process: str) -> int | None:
    """A descriptor that becomes readable when this process ends.

    None if it cannot be watched from here. Raises Gone if it has ended already.
    """
    boot, namespace, pid_text, start = process.split(":")
    if boot != boot_id() or namespace != _namespace("pid", os.getpid()):
        return None
    pid = int(pid_text)
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
    try:
        descriptor = open_pidfd(process)
    except Gone:
        return True
    if descriptor is None:
        return False
    try:
        return _has_ended(descriptor)  # also one that nobody has waited for yet
    finally:
        os.close(descriptor)


def _has_ended(pidfd: int) -> bool:
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    return bool(poll.poll(0))
