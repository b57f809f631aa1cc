"""Real `lockfast` processes on a lock file of their own, and bounded waits for what they do."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

PATIENCE_S = 30.0
"""Nothing here takes that long: whoever waits longer has found a mistake."""

ROOT = Path(__file__).parents[2]
LOCKFAST = (sys.executable, "-m", "lockfast")

READ = ("sh", "-c", "echo ready; read line; echo got $line")
"""A command that says when it runs, and runs until it is told something."""


HEARING = """
import select, signal, socket, sys
heard, told = socket.socketpair()
told.setblocking(False)
signal.set_wakeup_fd(told.fileno())
def signals(*names):
    for name in names:
        signal.signal(getattr(signal, name), lambda number, frame: None)
    print("ready", flush=True)
    while heard in select.select([heard, sys.stdin], [], [])[0]:
        yield from map(signal.Signals, heard.recv(64))
"""
"""For a command that hears signals until it is told something.

From a socket: Python would not run a handler for a signal that arrives just before a read.
"""

NAMING = (
    HEARING
    + """
for number in signals("SIGHUP", "SIGINT", "SIGQUIT", "SIGTERM", "SIGUSR1", "SIGUSR2", "SIGWINCH"):
    print(number.name, flush=True)
sys.exit(9)
"""
)
"""A command that names every signal it gets, once for each time."""


class Process:
    """A process whose output is read line by line."""

    def __init__(self, popen: subprocess.Popen[bytes]) -> None:
        self.popen = popen
        self.pid = popen.pid
        self._unread = b""

    def line(self) -> str:
        """The next line of its output; "" when nobody is left who could write one."""
        while b"\n" not in self._unread:
            more = self._read()
            if not more:
                break
            self._unread += more
        line, _, self._unread = self._unread.partition(b"\n")
        return line.decode()

    def rest(self) -> str:
        """Everything until its output is closed, by itself and all who inherited it."""
        while more := self._read():
            self._unread += more
        rest, self._unread = self._unread, b""
        return rest.decode()

    def _read(self) -> bytes:
        assert self.popen.stdout is not None
        ready, _, _ = select.select([self.popen.stdout], [], [], PATIENCE_S)
        assert ready, f"silent for {PATIENCE_S} s after {self._unread!r}"
        return os.read(self.popen.stdout.fileno(), 65536)

    def write(self, line: str) -> None:
        assert self.popen.stdin is not None
        self.popen.stdin.write(line.encode() + b"\n")
        self.popen.stdin.flush()

    def signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def exit_code(self) -> int:
        return self.popen.wait(PATIENCE_S)

    def complaint(self) -> str:
        """What it wrote to stderr, once it has ended."""
        assert self.popen.stderr is not None
        return self.popen.stderr.read().decode()


class Cli:
    """The command line on one store."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / "locks.db"
        self.url = f"sqlite://{self.path}"
        self.environment = {
            **{k: v for k, v in os.environ.items() if not k.startswith(("LOCKFAST_", "COLUMNS"))},
            "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), *filter(None, sys.path)]),
            "LOCKFAST_URL": self.url,
        }
        self._started: list[Process] = []

    def run(
        self, *arguments: str, environment: dict[str, str] | None = None, stdin: str = ""
    ) -> subprocess.CompletedProcess[str]:
        """Run `lockfast` to its end."""
        return subprocess.run(
            [*LOCKFAST, *arguments],
            input=stdin,
            capture_output=True,
            text=True,
            env={**self.environment, **(environment or {})},
            timeout=PATIENCE_S,
        )

    def start(self, *arguments: str) -> Process:
        """Start `lockfast`, as a process group of its own, as a shell would."""
        return self.start_program(*LOCKFAST, *arguments)

    def start_program(self, *argv: str, **options: Any) -> Process:
        options = {
            "stdin": subprocess.PIPE,
            "stdout": subprocess.PIPE,
            "stderr": subprocess.PIPE,
            "process_group": 0,
            **options,
        }
        process = Process(subprocess.Popen(argv, env=self.environment, **options))
        self._started.append(process)
        return process

    def hold(self, name: str, *options: str) -> Process:
        """A `lockfast run` that has the lock, until it is told something."""
        holder = self.start("run", name, *options, "--", *READ)
        assert holder.line() == "ready"
        return holder

    def show(self, name: str) -> Any:
        return json.loads(self.run("show", name, "--json").stdout)

    def wait_for_queue(self, name: str, length: int) -> None:
        until(lambda: self.show(name)["waiting_count"] == length, f"{length} waiting for {name}")

    def live_sessions(self) -> Any:
        return json.loads(self.run("sessions", "--json").stdout)

    def clean_up(self) -> None:
        """End whatever was started, down to orphans: they know our store by its URL."""
        mark = f"LOCKFAST_URL={self.url}".encode()
        while left := [pid for pid in all_pids() if is_alive(pid) and mark in environment_of(pid)]:
            for pid in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        for process in self._started:
            process.popen.kill()
            with contextlib.suppress(BrokenPipeError):
                process.popen.communicate()


def until(condition: Callable[[], object], what: str) -> None:
    """Wait for something that sends no word when it happens."""
    give_up = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < give_up, f"waited {PATIENCE_S} s for: {what}"
        time.sleep(0.01)


def children_of(pid: int) -> Sequence[int]:
    """The pids of a process's children; none if it is gone."""
    try:
        return [int(n) for n in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def all_pids() -> Sequence[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def environment_of(pid: int) -> Sequence[bytes]:
    """What a process was started with, as `NAME=value`; nothing if it is gone or another's."""
    try:
        return Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return []


def is_alive(pid: int) -> bool:
    """Whether a process runs; one that only waits to be reaped does not."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat[stat.rindex(")") + 2] != "Z"


def python(script: str) -> tuple[str, ...]:
    """A command that runs a script of ours."""
    return (sys.executable, "-c", script)
