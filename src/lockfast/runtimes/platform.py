"""What differs between Linux, macOS and Windows, each with a fallback.

Everything else in the package uses this module instead of testing for a platform: clocks,
polling, fork hooks, exit signals and the identity of a boot.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import time
from collections.abc import Callable
from typing import Any, Final, Protocol

# ── clocks ───────────────────────────────────────────────────────────────────────────

# The clock of leases must also count the time a machine is suspended. Linux has
# CLOCK_BOOTTIME for that. On macOS CLOCK_MONOTONIC does (time.monotonic() does not), and
# on Windows so does time.monotonic(), the only one there is.
if hasattr(time, "clock_gettime_ns"):
    from time import clock_gettime_ns

    _CLOCK: Final[int] = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)

    def now_ms() -> int:
        """Read the clock of leases, in milliseconds."""
        return clock_gettime_ns(_CLOCK) // 1_000_000

    def now_us() -> int:
        """Read the clock of leases, in microseconds."""
        return clock_gettime_ns(_CLOCK) // 1000

else:
    from time import monotonic_ns

    def now_ms() -> int:
        """Read the clock of leases, in milliseconds."""
        return monotonic_ns() // 1_000_000

    def now_us() -> int:
        """Read the clock of leases, in microseconds."""
        return monotonic_ns() // 1000


# ── polling ──────────────────────────────────────────────────────────────────────────

POLLIN: Final[int] = getattr(select, "POLLIN", 1)
POLLOUT: Final[int] = getattr(select, "POLLOUT", 4)


class HasDescriptor(Protocol):
    """An object with a descriptor, such as a socket."""

    def fileno(self) -> int: ...


class Poll(Protocol):
    """The part of `select.poll` objects that the package uses."""

    def register(self, fd: int | HasDescriptor, eventmask: int = ..., /) -> None: ...
    def unregister(self, fd: int | HasDescriptor, /) -> None: ...
    def poll(self, timeout: float | None = ..., /) -> list[tuple[int, int]]: ...


def poll() -> Poll:
    """Return a `select.poll` object, or one built on `select.select` (Windows)."""
    # Looked up on every call: gevent replaces it when it patches `select`.
    make: Callable[[], Poll] | None = getattr(select, "poll", None)
    return make() if make is not None else SelectPoll()


class SelectPoll:
    """Polling with `select.select`."""

    def __init__(self) -> None:
        self._events: dict[int, int] = {}

    def register(self, fd: int | HasDescriptor, eventmask: int = POLLIN | POLLOUT, /) -> None:
        self._events[_descriptor_of(fd)] = eventmask

    def unregister(self, fd: int | HasDescriptor, /) -> None:
        del self._events[_descriptor_of(fd)]

    def poll(self, timeout: float | None = None, /) -> list[tuple[int, int]]:
        """Return the descriptors that are ready; `timeout` is in milliseconds."""
        wait_s = None if timeout is None or timeout < 0 else timeout / 1000
        readers = [fd for fd, events in self._events.items() if events & POLLIN]
        writers = [fd for fd, events in self._events.items() if events & POLLOUT]
        if not readers and not writers:
            time.sleep(wait_s or 0)  # Windows refuses to wait for nothing
            return []
        # Windows reports a connection that failed as an exceptional condition only.
        readable, writable, failed = select.select(readers, writers, writers, wait_s)
        ready: dict[int, int] = {}
        for fd in readable:
            ready[fd] = POLLIN
        for fd in (*writable, *failed):
            ready[fd] = ready.get(fd, 0) | POLLOUT
        return list(ready.items())


def _descriptor_of(fd: int | HasDescriptor) -> int:
    return fd if isinstance(fd, int) else fd.fileno()


def _no_yield() -> None:
    """Do nothing, on platforms without sched_yield."""


yield_cpu: Final[Callable[[], None]] = getattr(os, "sched_yield", _no_yield)
"""Let another process run on this CPU: it may be the server that is to answer."""

# ── processes ────────────────────────────────────────────────────────────────────────


def at_fork(
    *,
    before: Callable[[], object] | None = None,
    after_in_parent: Callable[[], object] | None = None,
    after_in_child: Callable[[], object] | None = None,
) -> None:
    """Register functions to call around `os.fork`; do nothing where there is no fork."""
    register: Callable[..., None] | None = getattr(os, "register_at_fork", None)
    if register is None:
        return
    hooks = {"before": before, "after_in_parent": after_in_parent, "after_in_child": after_in_child}
    register(**{name: hook for name, hook in hooks.items() if hook is not None})


def exit_signals() -> tuple[signal.Signals, ...]:
    """Return the signals by which a system asks a process to end, apart from Ctrl-C."""
    names = ("SIGTERM", "SIGHUP", "SIGBREAK")  # SIGBREAK: a console that closes on Windows
    return tuple(getattr(signal, name) for name in names if hasattr(signal, name))


def boot_id() -> str:
    """Return an id that changes with every boot; "" where the system has none."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="utf-8") as file:
            return file.read().strip()
    except (OSError, ValueError):
        return _sysctl("kern.bootsessionuuid") if sys.platform == "darwin" else ""


def _sysctl(name: str) -> str:
    """Read a text from the macOS kernel; "" if that fails."""
    try:
        import ctypes

        libc: Any = ctypes.CDLL(None)
        value = ctypes.create_string_buffer(64)
        size = ctypes.c_size_t(len(value))
        if libc.sysctlbyname(name.encode(), value, ctypes.byref(size), None, 0):
            return ""
        return value.value.decode()
    except (ImportError, OSError, AttributeError, ValueError):
        return ""


def has_unix_sockets() -> bool:
    """Return True if Python has Unix sockets here."""
    import socket

    return hasattr(socket, "AF_UNIX")


def has_file_locks() -> bool:
    """Return True if byte ranges of a file can be locked by `fcntl`."""
    try:
        import fcntl  # noqa: F401
    except ImportError:
        return False
    return True
