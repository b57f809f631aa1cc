"""The command's process: forked before we wait for the lock, turned into it afterwards.

The fork happens while this process has a single thread, so what the child does until it
becomes the command (process group, signals, parent-death signal) is plain Python and
safe; after the lock was taken there are threads, and it would not be. It also means that
nothing of the lock's store, no socket and no file, is ever open in the child.
"""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from typing import Final, NoReturn

from lockfast.cli import codes

PR_SET_PDEATHSIG: Final = 1


def find_program(name: str) -> str:
    """Where the program is; raises the complaint a shell would have."""
    if "/" in name:
        candidates = [name]
    else:
        candidates = [os.path.join(place, name) for place in os.get_exec_path() if name]
    found = ""
    for path in candidates:
        if os.path.isfile(path) and os.access(path, os.X_OK):
            return path
        if os.path.exists(path):
            found = found or path
    if "/" in name and os.path.isdir(name):
        raise codes.Complaint(codes.NOT_EXECUTABLE, f"{name}: is a directory")
    if found and not os.path.isdir(found):
        raise codes.Complaint(codes.NOT_EXECUTABLE, f"{found}: not executable")
    raise codes.Complaint(codes.NOT_FOUND, f"{name}: command not found")


class Child:
    """A process group of its own, whose first process is to become the command."""

    def __init__(self, pid: int, path: str, go: int, heard: int) -> None:
        self.pid = pid
        self.status: int | None = None
        """Its exit code as a shell has it, once it has ended."""
        self._path = path
        self._go: int | None = go
        self._heard: int | None = heard

    @classmethod
    def stand_by(cls, path: str, argv: Sequence[str], death_signal: signal.Signals | None) -> Child:
        """Fork a process that waits for `start`; it ends by itself if that never comes.

        `death_signal` is what the kernel sends it when we die. It is bound to the thread
        that forks: call this from the main thread, which lasts as long as the process.
        """
        wait, go = os.pipe()
        heard, tell = os.pipe()
        sys.stdout.flush()
        sys.stderr.flush()
        parent = os.getpid()
        pid = os.fork()
        if pid == 0:
            try:
                os.close(go)
                os.close(heard)
                _prepare(parent, death_signal)
                _become(path, argv, wait, tell)
            finally:
                os._exit(codes.INTERNAL)
        os.close(wait)
        os.close(tell)
        # Here and in the child, so that the group is there whoever is first.
        with contextlib.suppress(OSError):
            os.setpgid(pid, pid)
        return cls(pid, path, go, heard)

    def start(self, environment: Mapping[str, str]) -> None:
        """Turn it into the command, with these variables added to our own."""
        assert self._go is not None
        assert self._heard is not None
        entries = "\0".join(f"{key}={value}" for key, value in environment.items())
        with contextlib.suppress(BrokenPipeError):  # killed while standing by
            os.write(self._go, os.fsencode(entries))
        os.close(self._go)
        self._go = None
        # Closed without a word when the command has taken over, or was killed before.
        with open(self._heard, "rb") as heard:
            self._heard = None
            failure = heard.read()
        if failure:
            # If it is there, it is the interpreter it names that is not.
            there = os.path.exists(self._path)
            code = codes.NOT_EXECUTABLE if there else codes.NOT_FOUND
            raise codes.Complaint(code, f"{self._path}: {os.strerror(int(failure))}")

    def dismiss(self) -> None:
        """Have it gone if it was never started; a command that runs is left alone."""
        if self._go is None:
            return
        os.close(self._go)
        self._go = None
        if self._heard is not None:
            os.close(self._heard)
            self._heard = None
        if self.status is None:
            os.waitpid(self.pid, 0)

    def poll(self) -> signal.Signals | None:
        """Take note of what happened to it; returns the signal that has stopped it, if one has."""
        while self.status is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG | os.WUNTRACED)
            if pid == 0:
                return None
            if os.WIFSTOPPED(status):
                return signal.Signals(os.WSTOPSIG(status))
            if os.WIFSIGNALED(status):
                self.status = codes.BY_SIGNAL + os.WTERMSIG(status)
            else:
                self.status = os.WEXITSTATUS(status)
        return None

    def tell(self, number: int) -> None:
        """Send a signal to the command alone."""
        if self.status is None:
            with contextlib.suppress(PermissionError):
                os.kill(self.pid, number)

    def tell_all(self, number: int) -> None:
        """Send a signal to the command and all it has started in its group."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, number)

    def is_gone(self) -> bool:
        """Whether the command has ended and nobody of its group is left."""
        if self.status is None:
            return False
        # As the first process of a container we inherit its orphans, and as long as
        # nobody reaps them they count.
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-self.pid, os.WNOHANG)[0]:
                pass
        try:
            os.killpg(self.pid, 0)
        except ProcessLookupError:
            return True
        except PermissionError:  # of another user, but there
            return False
        return False


# ── in the child ─────────────────────────────────────────────────────────────────────


def _prepare(parent: int, death_signal: signal.Signals | None) -> None:
    os.setpgid(0, 0)
    for number in signal.valid_signals():
        if callable(signal.getsignal(number)):
            signal.signal(number, signal.SIG_DFL)
    for number in (signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores them for itself
        signal.signal(number, signal.SIG_DFL)
    if death_signal is not None and sys.platform == "linux":
        try:
            import ctypes

            failed = ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, int(death_signal), 0, 0, 0)
        except (ImportError, OSError, AttributeError):
            failed = True
        if failed:
            os.write(2, b"lockfast: no parent-death signal here: CMD would outlive a kill -9\n")
        if os.getppid() != parent:
            os._exit(codes.INTERNAL)  # it died before we asked to be told


def _become(path: str, argv: Sequence[str], wait: int, tell: int) -> NoReturn:
    with open(wait, "rb") as waiting:
        entries = waiting.read()
    if not entries:
        os._exit(codes.OK)
    environment = dict(os.environb)
    for entry in entries.split(b"\0"):
        key, _, value = entry.partition(b"=")
        environment[key] = value
    try:
        try:
            os.execve(path, list(argv), environment)
        except OSError as error:
            if error.errno != errno.ENOEXEC:
                raise
            # A script without a #! line is for the shell, as execvp(3) has it.
            os.execve("/bin/sh", ["sh", path, *argv[1:]], environment)
    except OSError as error:
        os.write(tell, str(error.errno).encode())
    os._exit(codes.NOT_FOUND)
