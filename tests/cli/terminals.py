"""A terminal with a simulated user."""

from __future__ import annotations

import fcntl
import os
import select
import struct
import sys
import termios
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.cli.processes import PATIENCE_S, Cli, Process

CTRL_C = b"\x03"
CTRL_Z = b"\x1a"
ERASE_LINE = "\r\x1b[K"
SHELL = (sys.executable, str(Path(__file__).with_name("job_shell.py")))


class Terminal:
    """Sends keys, and reads what the terminal shows."""

    def __init__(self, master: int, slave: int) -> None:
        self.slave = slave
        self._master = master
        self._unread = b""

    def type(self, keys: bytes) -> None:
        os.write(self._master, keys)

    def resize(self, columns: int) -> None:
        fcntl.ioctl(self.slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))

    def line(self) -> str:
        """Return the next line as a user sees it, without what the program erased again."""
        while b"\n" not in self._unread:
            self._unread += self._read()
        line, _, self._unread = self._unread.partition(b"\n")
        return line.decode().rpartition(ERASE_LINE)[2]

    def prompt(self, end: str) -> str:
        """Return what is shown up to `end`, which is not followed by a line ending."""
        while not self._unread.endswith(end.encode()):
            self._unread += self._read()
        seen, self._unread = self._unread, b""
        return seen.decode()

    def _read(self) -> bytes:
        ready, _, _ = select.select([self._master], [], [], PATIENCE_S)
        assert ready, f"nothing to see for {PATIENCE_S} s after {self._unread!r}"
        return os.read(self._master, 65536)


@contextmanager
def open_terminal() -> Iterator[Terminal]:
    master, slave = os.openpty()
    modes = termios.tcgetattr(slave)
    modes[1] &= ~termios.OPOST
    modes[3] &= ~termios.ECHO
    termios.tcsetattr(slave, termios.TCSANOW, modes)
    try:
        yield Terminal(master, slave)
    finally:
        os.close(slave)
        os.close(master)


def start_job(cli: Cli, terminal: Terminal, *argv: str) -> Process:
    """Run a job in a shell on this terminal; return the shell."""
    slave = terminal.slave
    return cli.start_program(
        *SHELL,
        *argv,
        stdin=slave,
        stdout=slave,
        stderr=slave,
        process_group=None,
        start_new_session=True,
    )
