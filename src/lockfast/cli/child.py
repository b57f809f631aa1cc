"""The command's process, forked before we wait for the lock and turned into CMD afterwards.

We fork while this process has a single thread. So the child may run plain Python until it becomes
CMD (to set its process group, signals and parent-death signal), which would be unsafe later: once
the lock is held, there are other threads. The child also inherits no socket or file of the store.
"""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from typing import Final, NoReturn

from lockfast.cli import exit_codes

PR_SET_PDEATHSIG: Final = 1


def find_program(name: str) -> str:
    """Return the path of a program. Raises CommandError with a shell's message and exit code."""
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
        raise exit_codes.CommandError(exit_codes.NOT_EXECUTABLE, f"{name}: is a directory")
    if found and not os.path.isdir(found):
        raise exit_codes.CommandError(exit_codes.NOT_EXECUTABLE, f"{found}: not executable")
    raise exit_codes.CommandError(exit_codes.NOT_FOUND, f"{name}: command not found")


class Child:
    """A process that waits to become the command, and leads its own process group."""

    def __init__(self, pid: int, path: str, go: int, report: int) -> None:
        self.pid = pid
        self.status: int | None = None
        """Its exit code as a shell reports it, once it has ended."""
        self._path = path
        self._go: int | None = go
        self._report: int | None = report

    @classmethod
    def stand_by(cls, path: str, argv: Sequence[str], death_signal: signal.Signals | None) -> Child:
        """Fork a process that waits for `start` and exits if this process dies before that.

        The kernel sends `death_signal` to the child when the forking *thread* ends: call this
        from the main thread, which lasts as long as the process.
        """
        wait, go = os.pipe()
        report, failure = os.pipe()
        sys.stdout.flush()
        sys.stderr.flush()
        parent = os.getpid()
        pid = os.fork()
        if pid == 0:
            try:
                os.close(go)
                os.close(report)
                _prepare(parent, death_signal)
                _become(path, argv, wait, failure)
            finally:
                os._exit(exit_codes.INTERNAL)
        os.close(wait)
        os.close(failure)
        # Both here and in the child, so that the group exists whichever runs first.
        with contextlib.suppress(OSError):
            os.setpgid(pid, pid)
        return cls(pid, path, go, report)

    def start(self, environment: Mapping[str, str | None]) -> None:
        """Turn it into the command, with these variables set, or removed if None."""
        assert self._go is not None
        assert self._report is not None
        entries = "\0".join(
            key if value is None else f"{key}={value}" for key, value in environment.items()
        )
        with contextlib.suppress(BrokenPipeError):  # it was killed while it waited
            os.write(self._go, os.fsencode(entries))
        os.close(self._go)
        self._go = None
        # execve closes the pipe without a byte, and so does being killed before it.
        with open(self._report, "rb") as report:
            self._report = None
            failure = report.read()
        if failure:
            # If the file exists, it is the interpreter named in it that is missing.
            exists = os.path.exists(self._path)
            code = exit_codes.NOT_EXECUTABLE if exists else exit_codes.NOT_FOUND
            raise exit_codes.CommandError(code, f"{self._path}: {os.strerror(int(failure))}")

    def dismiss(self) -> None:
        """End the process if `start` was never called; a running command is left alone."""
        if self._go is None:
            return
        os.close(self._go)
        self._go = None
        if self._report is not None:
            os.close(self._report)
            self._report = None
        if self.status is None:
            os.waitpid(self.pid, 0)

    def poll(self) -> signal.Signals | None:
        """Record its exit if it has ended; return the signal that stopped it, if one has."""
        while self.status is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG | os.WUNTRACED)
            if pid == 0:
                return None
            if os.WIFSTOPPED(status):
                return signal.Signals(os.WSTOPSIG(status))
            if os.WIFSIGNALED(status):
                self.status = exit_codes.BY_SIGNAL + os.WTERMSIG(status)
            else:
                self.status = os.WEXITSTATUS(status)
        return None

    def send_signal(self, number: int) -> None:
        """Send a signal to the command alone."""
        if self.status is None:
            with contextlib.suppress(PermissionError):
                os.kill(self.pid, number)

    def signal_group(self, number: int) -> None:
        """Send a signal to the command and every process of its group."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, number)

    def is_gone(self) -> bool:
        """Return whether the command has ended and no process of its group is left."""
        if self.status is None:
            return False
        # As pid 1 of a container we inherit the group's orphans, and they count as members
        # until we reap them.
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-self.pid, os.WNOHANG)[0]:
                pass
        try:
            os.killpg(self.pid, 0)
        except ProcessLookupError:
            return True
        except PermissionError:  # it exists, but runs as another user
            return False
        return False


# ── in the child ─────────────────────────────────────────────────────────────────────


def _prepare(parent: int, death_signal: signal.Signals | None) -> None:
    os.setpgid(0, 0)
    for number in signal.valid_signals():
        if callable(signal.getsignal(number)):
            signal.signal(number, signal.SIG_DFL)
    for number in (signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores these
        signal.signal(number, signal.SIG_DFL)
    if death_signal is not None and sys.platform == "linux":
        try:
            import ctypes

            failed = ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, int(death_signal), 0, 0, 0)
        except (ImportError, OSError, AttributeError):
            failed = True
        if failed:
            os.write(2, b"lockfast: no parent-death signal: CMD would survive our kill -9\n")
        if os.getppid() != parent:
            os._exit(exit_codes.INTERNAL)  # it died before prctl took effect


def _become(path: str, argv: Sequence[str], wait: int, failure: int) -> NoReturn:
    with open(wait, "rb") as waiting:
        entries = waiting.read()
    if not entries:
        os._exit(exit_codes.OK)
    environment = dict(os.environb)
    for entry in entries.split(b"\0"):
        key, equals, value = entry.partition(b"=")
        if equals:
            environment[key] = value
        else:
            environment.pop(key, None)
    try:
        try:
            os.execve(path, list(argv), environment)
        except OSError as error:
            if error.errno != errno.ENOEXEC:
                raise
            # Like execvp(3), run a script without a #! line with the shell.
            os.execve("/bin/sh", ["sh", path, *argv[1:]], environment)
    except OSError as error:
        os.write(failure, str(error.errno).encode())
    os._exit(exit_codes.NOT_FOUND)
