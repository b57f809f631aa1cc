"""Real `lockfast` processes on their own lock file, and bounded waits for what they do."""

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
"""Nothing here takes that long: a longer wait is a failure."""

ROOT = Path(__file__).parents[2]
LOCKFAST = (sys.executable, "-m", "lockfast")

READ = ("sh", "-c", "echo ready; read line; echo got $line")
"""A command that prints when it runs, and runs until it reads a line."""


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
"""For a command that receives signals until it reads a line.

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
"""A command that prints the name of every signal it receives."""


class Process:
    """A process whose output is read line by line."""

    def __init__(self, popen: subprocess.Popen[bytes]) -> None:
        self.popen = popen
        self.pid = popen.pid
        self._unread = b""

    def line(self) -> str:
        """Return the next line of its output; "" if no process is left that could write one."""
        while b"\n" not in self._unread:
            more = self._read()
            if not more:
                break
            self._unread += more
        line, _, self._unread = self._unread.partition(b"\n")
        return line.decode()

    def rest(self) -> str:
        """Return everything until its output is closed, by it and by all that inherited it."""
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
        """Return what it wrote to stderr, after it has ended."""
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
        """Run `lockfast` and return when it has ended."""
        return subprocess.run(
            [*LOCKFAST, *arguments],
            input=stdin,
            capture_output=True,
            text=True,
            env={**self.environment, **(environment or {})},
            timeout=PATIENCE_S,
        )

    def start(self, *arguments: str) -> Process:
        """Start `lockfast` in its own process group, as a shell would."""
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
        """Start a `lockfast run` that holds the lock until it reads a line."""
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
        """Kill everything that was started, orphans included: our URL is in their environment."""
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
    """Poll for a condition that has no event. Fails after PATIENCE_S."""
    give_up = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < give_up, f"waited {PATIENCE_S} s for: {what}"
        time.sleep(0.01)


def children_of(pid: int) -> Sequence[int]:
    """Return the pids of a process's children; [] if it is gone."""
    try:
        return [int(n) for n in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def all_pids() -> Sequence[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def environment_of(pid: int) -> Sequence[bytes]:
    """Return a process's environment as `NAME=value`; [] if it is gone or not ours."""
    try:
        return Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return []


def is_alive(pid: int) -> bool:
    """Return whether a process runs and is not a zombie."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat[stat.rindex(")") + 2] != "Z"


def python(script: str) -> tuple[str, ...]:
    """Return a command that runs a Python script."""
    return (sys.executable, "-c", script)
