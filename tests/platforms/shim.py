"""Show `lockfast` a standard library without what another platform lacks.

As a pytest plugin (`-p tests.platforms.shim`) it does so before `lockfast` is imported, for the
platform that LOCKFAST_TEST_PLATFORM names. Only modules of `lockfast` see the difference: the test
tools and the servers use this machine's library.

Only the CI matrix can test what exists everywhere but *behaves* differently, such as file
permissions.
"""

from __future__ import annotations

import builtins
import importlib
import os
import socket
import sys
from collections.abc import Mapping
from types import ModuleType
from typing import Any

MACOS: Mapping[str, tuple[str, ...]] = {
    "os": ("pidfd_open", "sched_yield", "posix_fadvise"),
    "select": ("epoll",),
    "time": ("CLOCK_BOOTTIME",),
    "signal": ("SIGSTKFLT", "SIGPWR", "SIGRTMIN", "SIGRTMAX", "sigtimedwait"),
    "fcntl": ("F_OFD_SETLK", "F_OFD_SETLKW", "F_OFD_GETLK"),
}
WINDOWS: Mapping[str, tuple[str, ...]] = {
    "os": (
        *MACOS["os"],
        *("fork", "forkpty", "register_at_fork", "setpgid", "getpgrp", "killpg", "setsid"),
        *("geteuid", "getuid", "getegid", "getgid", "getgroups", "fchown", "chown", "uname"),
        *("O_NOFOLLOW", "O_CLOEXEC", "O_DIRECTORY", "WNOHANG", "WUNTRACED", "statvfs"),
    ),
    "select": ("epoll", "poll", "POLLIN", "POLLOUT", "POLLERR", "POLLHUP"),
    "time": ("clock_gettime", "clock_gettime_ns", "CLOCK_BOOTTIME", "CLOCK_MONOTONIC"),
    "signal": (
        *("SIGSTOP", "SIGCONT", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2", "SIGCHLD", "SIGKILL"),
        *("SIGPIPE", "SIGTSTP", "SIGWINCH", "SIGTTOU", "SIGTTIN", "SIGXFSZ", "SIGALRM"),
        *("pthread_sigmask", "setitimer", "siginterrupt"),
    ),
    "socket": ("AF_UNIX",),
}
NO_MODULES: Mapping[str, tuple[str, ...]] = {
    "macos": (),
    "windows": ("fcntl", "termios", "pwd", "grp", "resource"),
}


class Lacking(ModuleType):
    """A module without some of its names."""

    def __init__(self, real: ModuleType, names: tuple[str, ...], **instead: Any) -> None:
        super().__init__(real.__name__)
        self.__dict__.update(real=real, names=frozenset(names), **instead)

    def __getattr__(self, name: str) -> Any:
        if name in self.__dict__["names"]:
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        return getattr(self.__dict__["real"], name)


def pair_over_loopback() -> tuple[socket.socket, socket.socket]:
    """A replacement for Windows' `socket.socketpair`: two ends of a TCP connection."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        one = socket.create_connection(server.getsockname())
        other, _ = server.accept()
    for end in (one, other):
        end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return one, other


def show(platform: str) -> None:
    """Show `lockfast` the standard library of `platform` from now on."""
    assert "lockfast" not in sys.modules
    modules: dict[str, ModuleType] = {}
    for name, names in {"macos": MACOS, "windows": WINDOWS}[platform].items():
        instead: dict[str, Any] = {}
        if name == "socket":
            instead["socketpair"] = pair_over_loopback
        modules[name] = Lacking(importlib.import_module(name), names, **instead)
    real_import, real_open = builtins.__import__, builtins.open

    def import_for_lockfast(name: str, globals: Any = None, *args: Any, **options: Any) -> Any:
        if str((globals or {}).get("__name__", "")).partition(".")[0] == "lockfast":
            if name in NO_MODULES[platform]:
                raise ModuleNotFoundError(f"No module named {name!r}", name=name)
            if name in modules:
                return modules[name]
        return real_import(name, globals, *args, **options)

    def open_for_lockfast(path: Any, *args: Any, **options: Any) -> Any:
        caller = str(sys._getframe(1).f_globals.get("__name__", ""))
        if str(path).startswith("/proc/") and caller.startswith("lockfast."):
            raise FileNotFoundError(2, "No such file or directory", path)
        return real_open(path, *args, **options)

    builtins.__import__ = import_for_lockfast
    builtins.open = open_for_lockfast  # type: ignore[assignment]


if os.environ.get("LOCKFAST_TEST_PLATFORM"):
    show(os.environ["LOCKFAST_TEST_PLATFORM"])
