"""The guardian: a process that kills the command's remains if `lockfast run` is killed.

The parent-death signal reaches the command itself, but not the processes it has started, which
would continue to work without the lock. The guardian waits on a pipe whose other end only `lockfast
run` has open. If the pipe is closed without a message, `lockfast run` was killed with -9. The
guardian then kills the command's process group and, on Linux, every process that has the command's
LOCKFAST_SESSION in its environment, even if it has left the group.
"""

from __future__ import annotations

import contextlib
import os
import signal
from typing import Final

from lockfast.cli import exit_codes

DONE: Final = b"."
ROUNDS: Final = 20
"""How often to search again: a process may fork while we kill."""


class Guardian:
    """The guardian's process, forked while this process has a single thread."""

    def __init__(self, group: int) -> None:
        wait, self._tell = os.pipe()
        self._pid = os.fork()
        if self._pid == 0:
            try:
                os.close(self._tell)
                _guard(wait, group)
            finally:
                os._exit(exit_codes.OK)
        os.close(wait)

    def watch(self, session: str) -> None:
        """Send it the session of the lease, which marks the command's processes."""
        with contextlib.suppress(OSError):
            os.write(self._tell, session.encode())

    def dismiss(self) -> None:
        """End it: the command has ended, or we stop it ourselves."""
        with contextlib.suppress(OSError):
            os.write(self._tell, DONE)
        os.close(self._tell)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self._pid, 0)


def _guard(wait: int, group: int) -> None:
    os.setsid()  # not part of the terminal's job, whatever is typed there
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM, signal.SIGQUIT):
        signal.signal(number, signal.SIG_IGN)
    # Close everything, in case a reader waits for the end of a pipe such as our output.
    os.closerange(0, wait)
    os.closerange(wait + 1, wait + 1024)
    session = b""
    while data := os.read(wait, 1024):
        if data.endswith(DONE):
            return
        session += data
    if not session:
        return  # the command was never started
    mark = b"LOCKFAST_SESSION=" + session
    for _ in range(ROUNDS):
        with contextlib.suppress(OSError):
            os.killpg(group, signal.SIGKILL)
        if not _kill_marked(mark):
            return


def _kill_marked(mark: bytes) -> bool:
    """Kill the processes with this variable in their environment. Return True if any was found."""
    found = False
    try:
        pids = [int(name) for name in os.listdir("/proc") if name.isdigit()]
    except OSError:
        return False
    for pid in pids:
        try:
            with open(f"/proc/{pid}/environ", "rb") as file:
                if mark not in file.read().split(b"\0"):
                    continue
            os.kill(pid, signal.SIGKILL)
            found = True
        except OSError:
            continue  # it has ended, or belongs to another user
    return found
