"""Real processes for tests: each runs one role, reports what it does and takes commands.

A role is a plain function of an importable module. It talks over two pipes, a line at a time, so a
test is a story: "held 17", "release", "free". Every wait is bounded, and at the end of a test
everything that was started is killed, whole process groups at once.
"""

from __future__ import annotations

import importlib
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Concatenate, Final, NoReturn, ParamSpec

import lockfast

P = ParamSpec("P")

PATIENCE_S: Final = 30.0
"""How long to wait for expected output; only a failing test waits that long."""

ROOT: Final = Path(__file__).parents[2]


class Link:
    """A role's end of the pipes."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._line = b""

    def say(self, *words: object) -> None:
        # A write smaller than a pipe's buffer is atomic, even with other writers.
        os.write(1, (" ".join(map(str, words)) + "\n").encode())

    def hear(self) -> str:
        """Return the next line from the test; exit if the test has ended."""
        while b"\n" not in self._line:
            more = os.read(0, 4096)
            if not more:
                raise SystemExit("the test is gone")
            self._line += more
        line, _, self._line = self._line.partition(b"\n")
        return line.decode()

    def connect(self, **settings: Any) -> lockfast.Client:
        return lockfast.connect(self.url, **settings)


Role = Callable[Concatenate[Link, P], None]


def main() -> None:
    """Run a role: `python -m tests.processes.crew module role url arguments`."""
    module, name, url, arguments = sys.argv[1:]
    role = getattr(importlib.import_module(module), name)
    positional, named = json.loads(arguments)
    role(Link(url), *positional, **named)


class Child:
    """A test's end of the pipes: one process in its own process group."""

    def __init__(self, role: str, command: list[str], errors: Path) -> None:
        self.role = role
        self._errors = errors
        self._said: list[str] = []
        self._line = b""
        with errors.open("wb") as stderr:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                bufsize=0,
                cwd=ROOT,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
                start_new_session=True,
            )
        self.pid = self.process.pid

    # ── talking ──────────────────────────────────────────────────────────────────────

    def hears(self, word: str, within: float = PATIENCE_S) -> list[str]:
        """Wait for the next line, which must begin with `word`; return its other words."""
        line = self.hears_anything(within)
        first, *others = line.split()
        if first != word:
            self._fail(f"said {line!r} instead of {word!r}")
        return others

    def hears_anything(self, within: float = PATIENCE_S) -> str:
        assert self.process.stdout is not None
        until = time.monotonic() + within
        while b"\n" not in self._line:
            left = until - time.monotonic()
            if left <= 0 or not select.select([self.process.stdout], [], [], left)[0]:
                self._fail(f"said nothing for {within} s")
            more = os.read(self.process.stdout.fileno(), 65536)
            if not more:
                self._fail(f"ended ({self.finish()})")
            self._line += more
        text, _, self._line = self._line.partition(b"\n")
        self._said.append(text.decode())
        return self._said[-1]

    def is_talking(self, within: float) -> bool:
        """Return whether there is output to read, waiting for it at most `within` seconds."""
        assert self.process.stdout is not None
        return bool(self._line or select.select([self.process.stdout], [], [], within)[0])

    def tell(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(line.encode() + b"\n")

    def _fail(self, what: str) -> NoReturn:
        said = "\n  ".join(self._said) or "nothing"
        raise AssertionError(
            f"{self.role} ({self.pid}) {what}\nit said before:\n  {said}\n"
            f"its errors:\n{self.errors()}"
        )

    def errors(self) -> str:
        return self._errors.read_text(errors="replace")

    # ── signals ──────────────────────────────────────────────────────────────────────

    def kill(self) -> None:
        """Kill the process itself, and nothing else, with SIGKILL; return when it is dead."""
        self.process.kill()
        self.process.wait(PATIENCE_S)

    def stop(self) -> None:
        """Stop the process with SIGSTOP; return when it has stopped."""
        os.kill(self.pid, signal.SIGSTOP)
        self.await_stop()

    def await_stop(self) -> None:
        os.waitid(os.P_PID, self.pid, os.WSTOPPED | os.WNOWAIT)

    def go_on(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def finish(self, within: float = PATIENCE_S) -> int:
        """Wait for its end; return its exit code, negative if a signal ended it."""
        try:
            return self.process.wait(within)
        except subprocess.TimeoutExpired:
            self._fail(f"did not end within {within} s")

    def destroy(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self.process.wait(PATIENCE_S)
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()


class Crew:
    """The processes of one test, and the lock file they share."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.url = f"sqlite://{directory / 'locks.db'}"
        self._children: list[Child] = []
        self._clients: list[lockfast.Client] = []

    def start(self, role: Role[P], *args: P.args, **kwargs: P.kwargs) -> Child:
        """Start a process that runs `role(link, *args, **kwargs)`; arguments are plain values."""
        command = [sys.executable, "-m", __name__, role.__module__, role.__name__, self.url]
        errors = self.directory / f"child-{len(self._children)}-errors.txt"
        child = Child(role.__name__, [*command, json.dumps([args, kwargs])], errors)
        self._children.append(child)
        return child

    def client(self, **settings: Any) -> lockfast.Client:
        """Return a client in the test's own process; it is closed at the end."""
        client = lockfast.connect(self.url, **settings)
        self._clients.append(client)
        return client

    def await_waiting(self, name: str, count: int) -> None:
        """Wait until this many claims wait for a lock."""
        look = self.client()
        try:
            until(lambda: look.inspect(name).waiting_count == count, f"{count} wait for {name}")
        except AssertionError as error:
            raise AssertionError(f"{error}\n{look.inspect(name)}\n{self._errors()}") from None

    def _errors(self) -> str:
        return "\n".join(
            f"{child.role} ({child.pid}) ended with {child.process.poll()}: {child.errors()}"
            for child in self._children
        )

    def stop_in_body(self, child: Child) -> None:
        """Stop a process with SIGSTOP, but not in the middle of a transaction of its keeper."""
        probe = self.client(connect_timeout=1.0)
        while True:
            child.stop()
            with suppress(lockfast.StoreUnavailableError):
                probe.lock("probe").acquire().release()
                return
            child.go_on()

    def dismiss(self) -> None:
        for child in self._children:
            child.destroy()
        for client in self._clients:
            client.close()


def until(true: Callable[[], bool], what: str, within: float = PATIENCE_S) -> None:
    """Poll for a condition that has no event, for a bounded time."""
    give_up = time.monotonic() + within
    while not true():
        if time.monotonic() > give_up:
            raise AssertionError(f"not within {within} s: {what}")
        time.sleep(0.002)


def crew_in(directory: Path) -> Iterator[Crew]:
    """Yield a crew, as the body of a fixture."""
    crew = Crew(directory)
    try:
        yield crew
    finally:
        crew.dismiss()


def now_ms() -> float:
    """Read the clock of `lease.deadline`, which all processes of this machine share."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) / 1e6


if __name__ == "__main__":
    # This module is `__main__` here, but a role's Link must be the one it imports.
    importlib.import_module("tests.processes.crew").main()
